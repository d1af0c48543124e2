#include "tools/train/statistics.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace mantissa {
namespace {

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
  LogHistogram copy;
  copy.restore(nlohmann::json::parse(histogram.state().dump()));
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
  EXPECT_NE(text.find("2048 tok/s | MFU 50.0% of GEMM peak (the median step)"), std::string::npos) << text;

  RunStatistics resumed;
  resumed.restore(nlohmann::json::parse(statistics.state().dump()));
  EXPECT_EQ(resumed.state(), statistics.state());
  EXPECT_LT(statistics.state().dump().size(), 2000u);
}

}  // namespace
}  // namespace mantissa
