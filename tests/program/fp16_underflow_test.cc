// fp16 without loss scaling loses small gradients; the dynamic scale brings them back.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

// Prepared so that gradients start below fp16's smallest subnormal, 6e-8: matrices of 1e-6 pass hardly any gradient
// back.
std::vector<nlohmann::json> steps_of(const std::string& name, const std::vector<std::string>& settings, int ranks = 1) {
  const ThreadedRun run(name);
  run.train(ranks, with({"model.init_stddev=1e-6", "model.tie_head=false", "train.micro_batch=6", "train.steps=50"},
                        settings));
  return run.records("step");
}

double largest_loss_difference(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  double largest = 0.0;
  for (size_t index = 0; index < a.size(); ++index) {
    const double left = a[index].at("loss"), right = b[index].at("loss");
    largest = std::max(largest, std::abs(left - right) / left);
  }
  return largest;
}

TEST(Fp16Underflow, ScalingRecoversWhatUnderflowTakesAway) {
  const auto exact = steps_of("underflow_fp32", {"precision.compute=fp32"});
  const auto bare = steps_of("underflow_bare", {"precision.compute=fp16", "scaler.mode=none"});
  const auto scaled = steps_of("underflow_scaled", {"precision.compute=fp16", "scaler.mode=dynamic"});
  ASSERT_EQ(exact.size(), 50u);
  ASSERT_EQ(bare.size(), 50u);
  ASSERT_EQ(scaled.size(), 50u);

  // Without a scale most of the first step's gradient underflows. With it only fp16's own rounding (2^-11) remains, a
  // few times over on the way through the layers.
  const double norm = exact[0].at("grad_norm");
  EXPECT_LT(bare[0].at("grad_norm").get<double>(), 0.5 * norm);
  EXPECT_NEAR(scaled[0].at("grad_norm").get<double>(), norm, 0.01 * norm);

  // The curve: off by more than a half per cent without, on the fp32 curve within 2^-10 (fp16's eps) with a scale.
  EXPECT_GT(largest_loss_difference(exact, bare), 5e-3);
  EXPECT_LT(largest_loss_difference(exact, scaled), std::ldexp(1.0, -10));
}

// Gradients computed in fp32 and sent in fp16. The scale of `scaler.mode: auto` saves the small gradients.
TEST(Fp16Underflow, AnFp16WireGetsALossScale) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "model.init_stddev=1e-5"};
  const auto exact = steps_of("wire_fp32", with(fp32, {"comm.wire_dtype=fp32"}), 2);
  const auto bare = steps_of("wire_bare", with(fp32, {"comm.wire_dtype=fp16", "scaler.mode=none"}), 2);
  const auto scaled = steps_of("wire_scaled", with(fp32, {"comm.wire_dtype=fp16"}), 2);
  ASSERT_EQ(scaled.size(), 50u);
  EXPECT_EQ(scaled[0].at("scale"), 65536);
  // The small gradients are hardly a part of the norm, but AdamW divides them by their own size.
  const double norm = exact[0].at("grad_norm");
  EXPECT_NEAR(scaled[0].at("grad_norm").get<double>(), norm, std::ldexp(norm, -11));
  EXPECT_GT(largest_loss_difference(exact, bare), 30.0 * largest_loss_difference(exact, scaled));
}

}  // namespace
}  // namespace mantissa::testing
