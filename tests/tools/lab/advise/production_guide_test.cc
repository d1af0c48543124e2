// Guides to production: thresholds by hand, and configurations that keep the given settings.
#include "tools/lab/advise/recommendation.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/tools/lab/advise/prepared_comparison.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using testing::measured_run;
using testing::measurement_of_all;
using testing::unwrapped;
using testing::wanted_config;

// A loss 0.603 above the median and a norm of 4.02 times the usual are not uneasy below half of 1.206, and 1 + half of
// 6.04; two digits, rounded up.
TEST(ProductionGuide, ThresholdsAreTwiceWhatMeasuredRunsDid) {
  const SignalThresholds found = thresholds_of({measured_run(), measured_run(3.1, 2.0)});
  EXPECT_EQ(found.compared, 1800) << "steps after the first hundred";
  EXPECT_DOUBLE_EQ(found.loss_rise, 1.3);
  EXPECT_DOUBLE_EQ(found.norm_factor, 7.1);
}

// The greatest over the window, by sorting, of runs whose losses and norms scatter.
TEST(ProductionGuide, ThresholdsAreThoseOfSortedWindows) {
  Json run = measured_run();
  std::vector<double> losses, norms;
  double rise = 0.0, factor = 0.0;
  for (size_t step = 0; step < 1000; ++step) {
    const double chance = std::fmod(static_cast<double>(step * step) * 0.618034, 1.0);
    const double loss = 3.0 + 2.0 * chance * chance, norm = 1.0 + 9.0 * std::pow(chance, 8.0);
    run["steps"]["loss"][step] = loss;
    run["steps"]["grad_norm"][step] = norm;
    if (step >= 100) {
      std::vector<double> last(losses.end() - 100, losses.end()), last_norms(norms.end() - 100, norms.end());
      std::ranges::sort(last);
      std::ranges::sort(last_norms);
      rise = std::max(rise, loss - last[49]);
      factor = std::max(factor, norm / last_norms[89]);
    }
    losses.push_back(loss);
    norms.push_back(norm);
  }
  const SignalThresholds found = thresholds_of(Json::array({run}));
  EXPECT_DOUBLE_EQ(found.loss_rise, std::ceil(20.0 * rise) / 10.0);
  EXPECT_DOUBLE_EQ(found.norm_factor, std::ceil(10.0 * (1.0 + 2.0 * (factor - 1.0))) / 10.0);
}

TEST(ProductionGuide, ThresholdsKnowOnlyHealthyAppliedStepsAfterAFullWindow) {
  Json skipped = measured_run(), failed = measured_run(9.0);
  skipped["steps"]["result"][140] = "overflow";
  skipped["steps"]["grad_norm"][140] = nullptr;
  failed["failure"] = "stopped";
  const SignalThresholds calm = thresholds_of({skipped, failed, measured_run(9.0, 9.0, 101, 99)});
  EXPECT_EQ(calm.compared, 899 + 1);
  EXPECT_DOUBLE_EQ(calm.loss_rise, 1.0);
  EXPECT_DOUBLE_EQ(calm.norm_factor, 4.0);
}

// Over a quantile of 0 no factor is calm.
Json run_of_one_norm() {
  Json still = measured_run();
  for (Json& norm : still["steps"]["grad_norm"]) norm = norm == 4.02 ? 4.02 : 0.0;
  return still;
}

TEST(ProductionGuide, RunsThatCannotTellGiveNoThreshold) {
  const Json still = run_of_one_norm();
  const Json sixty = Json::array({measured_run(3.1, 2.0, 60), measured_run(3.1, 2.0, 60)});
  for (const Json& none : {Json::array(), sixty, Json::array({measured_run(3.4, 4.0, 999)}), Json::array({still})}) {
    const SignalThresholds found = thresholds_of(none);
    EXPECT_EQ(found.has_infinite, none == Json::array({still}));
    EXPECT_EQ(found.loss_rise, 0.0);
    EXPECT_EQ(found.norm_factor, 0.0);
  }
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
  EXPECT_DOUBLE_EQ(options.loss_rise, 1.3);
  EXPECT_DOUBLE_EQ(options.norm_factor, 7.1);
  EXPECT_DOUBLE_EQ(options.skipped_share, 0.01) << "one step of the window";
  EXPECT_DOUBLE_EQ(options.underflow_share, 0.5);
  EXPECT_EQ(found.precision_fallback.overflows, 2);
  EXPECT_TRUE(found.probe.enabled);
  EXPECT_EQ(found.probe.interval, 100);
  EXPECT_EQ(found.train.eval_interval, 100);
  EXPECT_EQ(found.checkpoint.interval, 200) << "4000 steps, twenty times";
  EXPECT_EQ(found.checkpoint.resume, "auto");
  EXPECT_EQ(flatten(parse_config(to_yaml(found), "written")), flatten(found));
}

ProductionGuide guide_of_runs(const Json& runs) {
  Measurement measurement = measurement_of_all();
  for (MeasuredPrecision& one : measurement.precisions) one.runs = runs;
  return production_guide(wanted_config(), measurement, *measurement.find("bf16"), measurement.find("fp32"));
}

TEST(ProductionGuide, SaysWhyItHasNoThreshold) {
  const auto said = [](const Json& runs) { return guide_of_runs(runs).figures.at("monitor")[0].at("watch"); };
  EXPECT_EQ(said(Json::array({run_of_one_norm()})),
            "no threshold: some gradient norms are infinitely far above the others");
  EXPECT_EQ(said(Json::array({measured_run(3.1, 2.0, 160)})),
            "no threshold: only 60 measured steps count (those after the first 100 of each run), 900 are needed: "
            "compare with more --steps");
}

TEST(ProductionGuide, OfShortRunsTheLadderKnowsNaNAndInfAlone) {
  const ProductionGuide guide = guide_of_runs(Json::array({measured_run(3.1, 2.0, 60)}));
  EXPECT_EQ(guide.config.precision_adaptive.options.loss_rise, 0.0);
  EXPECT_EQ(guide.config.precision_adaptive.options.norm_factor, 0.0);
  EXPECT_DOUBLE_EQ(guide.config.precision_adaptive.options.skipped_share, 0.01);
  ReportText text;
  add_guide(guide.figures, text);
  const std::string flat = unwrapped(text.text());
  EXPECT_NE(flat.find("step.loss, mantissa_loss: no threshold: only 0 measured steps count"), std::string::npos)
      << flat;
  EXPECT_EQ(flat.find("loss_rise"), std::string::npos) << flat;
  EXPECT_EQ(flat.find("norm_factor"), std::string::npos) << flat;
}

TEST(ProductionGuide, TheCostOfProbesIsThatOfTheInterval) {
  for (const auto& [interval, cost] : {std::pair("3", "33.3 to 100 %"), {"100", "1 to 3 %"}}) {
    const ProductionGuide guide =
        guide_of("bf16", "fp32", wanted_config({"probe.enabled=true", fmt::format("probe.interval={}", interval)}));
    EXPECT_NE(guide.figures.dump().find(fmt::format("{} more time at this interval", cost)), std::string::npos)
        << guide.figures;
  }
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

TEST(ProductionGuide, SpeaksOfFallbacksAndRollbacksOnlyWhereItHasThem) {
  for (const std::string above : {"fp32", ""}) {
    const std::string practices = guide_of("bf16", above, wanted_config()).figures.at("practices").dump();
    for (const char* const word : {"fallback", "rollback"}) {
      EXPECT_EQ(practices.find(word) != std::string::npos, !above.empty()) << practices;
    }
  }
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
