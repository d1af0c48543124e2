// Guides to production: thresholds by hand, and configurations that keep what they are given.
#include "tools/lab/advise/production_guide.h"

#include <gtest/gtest.h>

#include "tests/tools/lab/advise/prepared_comparison.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using testing::measured_run;
using testing::measurement_of_all;
using testing::wanted_config;

// A loss 0.2 above the median and a norm of 3 times the usual are not uneasy below half of 0.4, and 1 + half of 4.
TEST(ProductionGuide, ThresholdsAreTwiceWhatMeasuredRunsDid) {
  const SignalThresholds found = thresholds_of({measured_run(), measured_run(3.1, 2.0)});
  EXPECT_TRUE(found.are_measured);
  EXPECT_DOUBLE_EQ(found.loss_rise, 0.41);
  EXPECT_DOUBLE_EQ(found.norm_factor, 5.1);
}

TEST(ProductionGuide, ThresholdsKnowOnlyHealthyAppliedSteps) {
  Json skipped = measured_run(), failed = measured_run();
  skipped["steps"]["result"][40] = "overflow";
  skipped["steps"]["grad_norm"][40] = nullptr;
  failed["failure"] = "stopped";
  const SignalThresholds calm = thresholds_of({skipped, failed});
  EXPECT_DOUBLE_EQ(calm.loss_rise, 0.05);
  EXPECT_DOUBLE_EQ(calm.norm_factor, 1.5);
  for (const Json& none : {Json::array(), Json::array({failed}), Json::array({measured_run(3, 1, 20)})}) {
    const SignalThresholds documented = thresholds_of(none);
    EXPECT_FALSE(documented.are_measured);
    EXPECT_DOUBLE_EQ(documented.loss_rise, 0.5);
    EXPECT_DOUBLE_EQ(documented.norm_factor, 4.0);
  }
  Json still = measured_run();  // over a quantile of 0 no factor is calm
  for (Json& norm : still["steps"]["grad_norm"]) norm = norm == 3.0 ? 3.0 : 0.0;
  EXPECT_FALSE(thresholds_of(Json::array({still})).are_measured);
}

ProductionGuide guide_of(const std::string& chosen, const std::string& above, const Config& config) {
  const Measurement measurement = measurement_of_all();
  return production_guide(config, measurement, *measurement.find(chosen), measurement.find(above));
}

TEST(ProductionGuide, WritesALadderWithLooksAtLeastTwentyTimes) {
  const Config found =
      guide_of("mxfp8", "fp32", wanted_config({"checkpoint.interval=0", "checkpoint.resume=none"})).config;
  ASSERT_EQ(found.precision_adaptive.levels.size(), 2u);
  EXPECT_EQ(found.precision_adaptive.levels[0].compute, DType::kF32);
  EXPECT_EQ(found.precision_adaptive.levels[1].recipe, parse_recipe("mxfp8"));
  EXPECT_EQ(found.precision.recipe, parse_recipe("mxfp8"));
  const AdaptiveOptions& options = found.precision_adaptive.options;
  EXPECT_EQ(options.start, 1);
  EXPECT_TRUE(options.rollback);
  EXPECT_DOUBLE_EQ(options.loss_rise, 0.41);
  EXPECT_DOUBLE_EQ(options.norm_factor, 5.1);
  EXPECT_DOUBLE_EQ(options.underflow_share, 0.5);
  EXPECT_EQ(found.precision_fallback.overflows, 2);
  EXPECT_TRUE(found.probe.enabled);
  EXPECT_EQ(found.probe.interval, 100);
  EXPECT_EQ(found.train.eval_interval, 100);
  EXPECT_EQ(found.checkpoint.interval, 200) << "4000 steps, twenty times";
  EXPECT_EQ(found.checkpoint.resume, "auto");
  EXPECT_EQ(flatten(parse_config(to_yaml(found), "written")), flatten(found));
}

TEST(ProductionGuide, KeepsWhatTheConfigurationHas) {
  const Config given = wanted_config({"checkpoint.interval=50", "probe.enabled=true", "probe.interval=7",
                                      "precision.fallback.overflows=5", "train.eval_interval=11", "scaler.floor=clamp",
                                      "optimizer.lr=0.5", "precision.compute=fp32"});
  const Config found = guide_of("fp16", "bf16", given).config;
  EXPECT_EQ(found.checkpoint.interval, 50);
  EXPECT_EQ(found.probe.interval, 7);
  EXPECT_EQ(found.precision_fallback.overflows, 5);
  EXPECT_EQ(found.train.eval_interval, 11);
  EXPECT_EQ(found.scaler.scaler.floor_policy, FloorPolicy::kClamp);
  EXPECT_EQ(found.precision_adaptive.options.underflow_share, 0.0) << "nothing is rounded further";
  EXPECT_EQ(guide_of("fp16", "bf16", wanted_config()).config.scaler.scaler.floor_policy, FloorPolicy::kLift);
  EXPECT_TRUE(guide_of("fp32", "", given).config.precision_adaptive.levels.empty()) << "nothing is above it";
}

TEST(ProductionGuide, NamesNothingThatTheRunDoesNotHave) {
  const auto fields = [](const ProductionGuide& guide) {
    std::string all;
    for (const Json& one : guide.figures.at("monitor")) all += one.at("fields").get<std::string>() + " ";
    return all;
  };
  const std::string usual = fields(guide_of("bf16", "fp32", wanted_config()));
  EXPECT_NE(usual.find("validation.loss"), std::string::npos);
  EXPECT_NE(usual.find("rollback.cause"), std::string::npos);
  const std::string alone =
      fields(guide_of("bf16", "", wanted_config({"data.validation_fraction=0", "train.eval_interval=0"})));
  EXPECT_EQ(alone.find("validation.loss"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("rollback.cause"), std::string::npos) << alone;
}

TEST(ProductionGuide, SettingsHaveTheValuesOfItsConfiguration) {
  for (const auto& [chosen, above] : {std::pair("bf16", "tf32"), {"fp16", "bf16"}, {"mxfp8", "bf16"}, {"fp32", ""}}) {
    const ProductionGuide guide = guide_of(chosen, above, wanted_config());
    const auto settings = flatten(guide.config);
    for (const char* const list : {"practices", "fallbacks"}) {
      for (const Json& one : guide.figures.at(list)) {
        EXPECT_EQ(one.at("value"), settings.at(one.at("setting"))) << chosen;
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
