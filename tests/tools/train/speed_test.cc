#include "tools/train/speed.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "tools/train/metrics.h"

namespace mantissa {
namespace {

// GPT-2's smallest on an H100: 8 x 1024 tokens in 20.48 ms are 400 000 a second, times 854 438 400 FLOP = 341.8
// TFLOP/s.
SpeedContext gpt2_on_an_h100() {
  const ModelConfig config{.layers = 12, .width = 768, .heads = 12, .context = 1024, .vocab = 50257};
  return {.tokens_per_step = 8192,
          .flops_per_step = 8192 * training_flops_per_token(config),
          .gemm_peak_flops = 700e12,
          .datasheet_flops = 989.4e12};
}
constexpr double kSeconds = 0.02048;

TEST(Speed, RatesOfAStep) {
  const SpeedContext speed = gpt2_on_an_h100();
  EXPECT_NEAR(speed.tokens_per_second(kSeconds), 400000.0, 1e-6);
  EXPECT_NEAR(speed.mfu_of_gemm_peak(kSeconds), 0.488250514, 1e-9);  // 341.77536 / 700
  EXPECT_NEAR(speed.mfu_of_datasheet(kSeconds), 0.345436992, 1e-9);  // 341.77536 / 989.4
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 48.8% of GEMM peak, 34.5% of data sheet");
}

TEST(Speed, WithoutADataSheetOneShareIsLeftOut) {
  SpeedContext speed = gpt2_on_an_h100();
  speed.datasheet_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 48.8% of GEMM peak");
  StepReport report;
  report.seconds = kSeconds;
  const nlohmann::json record = step_json(report, speed, 0);
  EXPECT_TRUE(record.at("mfu_of_datasheet").is_null());
  EXPECT_NEAR(record.at("mfu_of_gemm_peak"), 0.488250514, 1e-9);
  EXPECT_NEAR(step_json(report, gpt2_on_an_h100(), 0).at("mfu_of_datasheet"), 0.345436992, 1e-9);
}

TEST(Speed, AnUnknownPeakHasNoShare) {
  SpeedContext speed = gpt2_on_an_h100();
  speed.gemm_peak_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 34.5% of data sheet");
  speed.datasheet_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s");
  StepReport report;
  report.seconds = kSeconds;
  EXPECT_TRUE(step_json(report, speed, 0).at("mfu_of_gemm_peak").is_null());
}

}  // namespace
}  // namespace mantissa
