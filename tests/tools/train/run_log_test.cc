// The reports of a run: metrics, statistics, speed.
#include "tools/train/run_log.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "models/model.h"

namespace mantissa::testing {
namespace {

nlohmann::json json_of(const StepReport& report, const SpeedContext& speed = {}) {
  return step_json({.report = report, .speed = speed});
}
std::string line_of(const StepReport& report, const SpeedContext& speed, int64_t steps, const std::string& time) {
  return step_line({.report = report, .speed = speed}, steps, time);
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  StepReport report;
  report.loss = std::nan("");
  report.grad_norm = INFINITY;
  const nlohmann::json record = nlohmann::json::parse(json_of(report).dump());
  EXPECT_TRUE(record.at("loss").is_null());
  EXPECT_TRUE(record.at("grad_norm").is_null());
}

TEST(Metrics, StepLineHasEveryColumn) {
  StepReport report;
  report.step = 4;
  report.loss = 7.62;
  report.grad_norm = 2.1;
  report.learning_rate = 3e-4;
  report.scale = 65536;
  report.seconds = 0.0123;
  const SpeedContext speed{.tokens_per_step = 1107, .flops_per_step = 4.51e9, .gemm_peak_flops = 8.13e11};
  EXPECT_EQ(
      line_of(report, speed, 100, "14:02, ends 14:05"),
      "step 5/100 | loss 7.6200, norm 2.100, lr 3.0e-04, scale 65536 | 12.3 ms, 90.0k tok/s, MFU 45% | 14:02, ends "
      "14:05");
  report.grad_norm = -std::nan("");
  EXPECT_NE(line_of(report, speed, 100, "14:02").find(", norm nan, "), std::string::npos);
}

// The longest numbers of every column, in runs of hours and of weeks.
TEST(Metrics, StepLinesFitATerminal) {
  StepReport report;
  report.step = 1'199'999;
  report.loss = 10.8462;
  report.grad_norm = 12345.678;
  report.learning_rate = 3e-4;
  report.scale = 0x1p24f;
  report.seconds = 1.234;
  const SpeedContext speed{.tokens_per_step = 4 << 20, .flops_per_step = 1e12, .gemm_peak_flops = 2e12};
  for (const char* time : {"14:02", "14:02, ends 14:05", "14:02, ends Dec 01 14:05"}) {
    const std::string line = line_of(report, speed, 2'000'000, time);
    EXPECT_LE(line.size(), 120u) << line;
    EXPECT_NE(line.find("scale 2^24 | "), std::string::npos) << line;
    EXPECT_NE(line.find("3.40M tok/s"), std::string::npos) << line;
    EXPECT_TRUE(line.ends_with(time)) << line;
  }
  report.step = 11'999;
  report.loss = 3.21;
  report.grad_norm = 0.31;
  report.scale = 65536.0f;
  const std::string usual = line_of(report, speed, 100'000, "14:02, ends 14:05");
  EXPECT_LE(usual.size(), 120u) << usual;
  EXPECT_NE(usual.find(" | 1234 ms, 3.40M tok/s, MFU 41% | "), std::string::npos) << usual;
}

TEST(Metrics, StepLineLeavesOutWhatSaysNothing) {
  StepReport report;
  report.step = 11999;
  report.loss = 3.21;
  report.grad_norm = 0.31;
  report.learning_rate = 3e-4;
  report.seconds = 0.1;
  SpeedContext speed{.tokens_per_step = 40000, .flops_per_step = 1e12, .datasheet_flops = 2e13};
  const std::string time = "14:02, ends Dec 01 14:05";
  EXPECT_EQ(line_of(report, speed, 100000, time),
            "step 12000/100000 | loss 3.2100, norm 0.310, lr 3.0e-04 | 100 ms, 400.0k tok/s, MFU 50% | 14:02, ends Dec "
            "01 14:05");
  speed.datasheet_flops = 0.0;
  EXPECT_EQ(line_of(report, speed, 100000, time).find("MFU"), std::string::npos);
}

StepReport step_report(int64_t step, double norm, float scale, float next_scale, bool applied = true) {
  StepReport report;
  report.step = step;
  report.grad_norm = norm;
  report.scale = scale;
  report.next_scale = next_scale;
  report.applied = applied;
  report.seconds = 0.25;
  return report;
}

// By its count of targets, whatever event the scaler saw.
TEST(StepReport, LacksTargetsOnlyWhereThereAreNone) {
  StepReport report = step_report(0, 1.0, 1.0f, 1.0f, false);
  report.event = ScalerEvent::kSpike;
  EXPECT_TRUE(report.lacks_targets());
  report.tokens = 5;
  EXPECT_FALSE(report.lacks_targets());
}

TEST(LogHistogram, QuantilesAreWithinHalfAPerCent) {
  LogHistogram histogram;
  std::vector<double> values;
  for (int index = 0; index < 2001; ++index) values.push_back(std::exp(-8.0 + 0.01 * ((index * 577) % 2001)));
  for (const double value : values) histogram.add(value);
  for (const double q : {0.0, 0.01, 0.5, 0.9, 0.99, 1.0}) {
    EXPECT_NEAR(histogram.quantile(q), quantile(values, q), 0.0051 * quantile(values, q)) << q;
  }
}

TEST(LogHistogram, HandlesNothingZeroAndState) {
  LogHistogram histogram;
  EXPECT_TRUE(std::isnan(histogram.quantile(0.5)));
  for (const double value : {0.0, 2.0, 2.0, 5.0}) histogram.add(value);
  EXPECT_EQ(histogram.quantile(0.0), 0.0);
  EXPECT_EQ(histogram.quantile(1.0), 5.0);
  const auto copy = nlohmann::json::parse(nlohmann::json(histogram).dump()).get<LogHistogram>();
  EXPECT_EQ(copy.quantile(0.4), histogram.quantile(0.4));
  EXPECT_NEAR(copy.quantile(0.4), 2.0, 0.01);
}

TEST(Quantile, InterpolatesBetweenValues) {
  EXPECT_DOUBLE_EQ(quantile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({7.0}, 0.9), 7.0);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(RunStatistics, StaysBoundedAndSurvivesAResume) {
  RunStatistics statistics;
  for (int64_t step = 0; step < 100; ++step) {
    const bool applied = step % 3 != 0;
    statistics.add(step_report(step, 1.0, 64.0f, applied ? 64.0f : 32.0f, applied), "because");
  }
  const std::string text =
      statistics.to_text(0, {.tokens_per_step = 512, .flops_per_step = 1e12, .gemm_peak_flops = 8e12});
  EXPECT_NE(text.find("66 done, 34 skipped, the last 10 of them:"), std::string::npos) << text;
  EXPECT_NE(text.find("step 100: because"), std::string::npos) << text;
  EXPECT_EQ(text.find("step 70: because"), std::string::npos) << text;
  EXPECT_NE(text.find("34 changes: ...,"), std::string::npos) << text;
  EXPECT_NE(text.find("2048 tok/s | MFU 50.0% of the measured peak (the median step)"), std::string::npos) << text;

  const std::string saved = nlohmann::json(statistics).dump();
  const auto resumed = nlohmann::json::parse(saved).get<RunStatistics>();
  EXPECT_EQ(nlohmann::json(resumed).dump(), saved);
  EXPECT_LT(saved.size(), 2000u);
}

TEST(RunStatistics, NamesUnitsThatReadWell) {
  RunStatistics statistics;
  StepReport report = step_report(0, 1.0, 1.0f, 1.0f, true);
  report.seconds = 9.5;
  statistics.add(report, "");
  const SpeedContext speed{.tokens_per_step = 1, .flops_per_step = 1.0};
  EXPECT_NE(statistics.to_text(0, speed).find("step time    min 9500 ms, "), std::string::npos);
  report.seconds = 14.41;
  statistics.add(report, "");
  const std::string text = statistics.to_text(size_t{3} << 19, speed);
  EXPECT_NE(text.find("step time    min 9.5 s, "), std::string::npos) << text;
  EXPECT_NE(text.find("max 14.41 s\n"), std::string::npos) << text;
  EXPECT_NE(text.find("peak memory  1.5 MiB (all that rank 0 held)"), std::string::npos) << text;
}

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
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 48.8% of the measured peak, 34.5% of data sheet");
}

TEST(Speed, WithoutADataSheetOneShareIsLeftOut) {
  SpeedContext speed = gpt2_on_an_h100();
  speed.datasheet_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 48.8% of the measured peak");
  StepReport report;
  report.seconds = kSeconds;
  const nlohmann::json record = json_of(report, speed);
  EXPECT_TRUE(record.at("mfu_of_datasheet").is_null());
  EXPECT_NEAR(record.at("mfu_of_gemm_peak"), 0.488250514, 1e-9);
  EXPECT_NEAR(json_of(report, gpt2_on_an_h100()).at("mfu_of_datasheet"), 0.345436992, 1e-9);
}

// The peak was measured on a busy machine. A step that seems fast, as the host sees it, does not count.
TEST(Speed, StepsRaiseAPeakThatTheyExceed) {
  SpeedContext speed{.tokens_per_step = 1, .flops_per_step = 1e12, .gemm_peak_flops = 1e12};
  PeakWatch watch;
  for (const double seconds : {1.2, 0.1, 1.1, 1.1, 1.1}) EXPECT_FALSE(watch.add(seconds, speed));
  EXPECT_EQ(speed.mfu_of_gemm_peak(0.1), 1.0);
  EXPECT_FALSE(watch.add(0.5, speed));
  EXPECT_TRUE(watch.add(0.5, speed) || watch.add(0.5, speed));
  EXPECT_NEAR(speed.gemm_peak_flops, 2e12, 1.0);
  EXPECT_NEAR(speed.mfu_of_gemm_peak(1.0), 0.5, 1e-9);
  EXPECT_FALSE(watch.add(0.5, speed));
  SpeedContext unknown{.tokens_per_step = 1, .flops_per_step = 1e12};
  for (int step = 0; step < 9; ++step) EXPECT_FALSE(PeakWatch(watch).add(0.1, unknown));
}

TEST(Speed, AnUnknownPeakHasNoShare) {
  SpeedContext speed = gpt2_on_an_h100();
  speed.gemm_peak_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s | MFU 34.5% of data sheet");
  speed.datasheet_flops = 0.0;
  EXPECT_EQ(speed.to_text(kSeconds), "400000 tok/s");
  StepReport report;
  report.seconds = kSeconds;
  EXPECT_TRUE(json_of(report, speed).at("mfu_of_gemm_peak").is_null());
}

}  // namespace
}  // namespace mantissa::testing
