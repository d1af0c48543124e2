// Guides to production: thresholds by hand, and configurations that keep the given settings.
#include "tools/lab/advise/recommendation.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/tensor/philox.h"
#include "tests/testing/damaged.h"
#include "tests/tools/lab/advise/prepared_comparison.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/config/config_binding.h"
#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {
namespace {

using testing::measured_run;
using testing::measurement_of_all;
using testing::unwrapped;
using testing::wanted_config;

constexpr int64_t kSteps = 4000;  // of the run

// A loss 0.603 above the median and a norm of 4.02 times the usual are not uneasy below half of 1.206, and 1 + half of
// 6.04; two digits, rounded up. Two outliers of 1800 values have no tail that would lead beyond.
TEST(ProductionGuide, ThresholdsAreAtLeastTwiceWhatMeasuredRunsDid) {
  const SignalThresholds found = thresholds_of({measured_run(), measured_run(3.1, 2.0)}, kSteps);
  EXPECT_EQ(found.compared, 1800) << "steps after the first hundred";
  EXPECT_DOUBLE_EQ(found.loss_rise, 1.3);
  EXPECT_DOUBLE_EQ(found.norm_factor, 7.1);
}

// The quantiles of an exponential distribution with a mean of 1. The largest of 1000 exceeds ln(1000 / 0.01) with a
// probability of 1 %; 20 values know the mean to 1.51 times itself.
TEST(ProductionGuide, ALevelIsThatOfTheExponentialLaw) {
  std::vector<double> values;
  for (int i = 999; i >= 0; --i) values.push_back(-std::log((i + 0.5) / 1000.0));
  const double scale = 40.0 / chi_squared_quantile(-1.644854, 40.0);
  EXPECT_NEAR(scale, 1.509, 0.001);
  EXPECT_NEAR(level_of(values, 1000, 0.01), std::log(50.0) + scale * std::log(1000 * 0.02 / 0.01), 0.15);
  EXPECT_GT(level_of(values, 1000, 0.01), std::log(1000 / 0.01));
  EXPECT_GT(level_of(values, 30000, 0.01), level_of(values, 1000, 0.01)) << "of a longer run";
  EXPECT_EQ(level_of(std::vector<double>(900, 0.25), 30000, 0.01), 0.25) << "nothing scatters";
}

// The values beside the window, by sorting, of runs whose losses and norms scatter.
TEST(ProductionGuide, ThresholdsAreThoseOfSortedWindows) {
  Json run = measured_run();
  std::vector<double> losses, norms, rises, factors;
  for (size_t step = 0; step < 1000; ++step) {
    const double chance = std::fmod(static_cast<double>(step * step) * 0.618034, 1.0);
    const double loss = 3.0 + 2.0 * chance * chance, norm = 1.0 + 9.0 * std::pow(chance, 8.0);
    run["steps"]["loss"][step] = loss;
    run["steps"]["grad_norm"][step] = norm;
    if (step >= 100) {
      std::vector<double> last(losses.end() - 100, losses.end()), last_norms(norms.end() - 100, norms.end());
      std::ranges::sort(last);
      std::ranges::sort(last_norms);
      rises.push_back(std::max(0.0, loss - last[49]));
      factors.push_back(std::log(norm / last_norms[89]));
    }
    losses.push_back(loss);
    norms.push_back(norm);
  }
  const SignalThresholds found = thresholds_of(Json::array({run}), kSteps);
  const double rise = level_of(rises, kSteps, 0.025), factor = std::exp(level_of(factors, kSteps, 0.025));
  EXPECT_GT(rise, 2.0 * std::ranges::max(rises)) << "extrapolated";
  EXPECT_DOUBLE_EQ(found.loss_rise, std::ceil(10.0 * rise) / 10.0);
  const double unit = factor < 10.0 ? 0.1 : factor < 100.0 ? 1.0 : 10.0;
  EXPECT_NEAR(found.norm_factor, std::ceil(factor / unit) * unit, 1e-6 * factor);
}

TEST(ProductionGuide, ThresholdsKnowOnlyHealthyAppliedStepsAfterAFullWindow) {
  Json skipped = measured_run(), failed = measured_run(9.0);
  skipped["steps"]["result"][140] = "overflow";
  skipped["steps"]["grad_norm"][140] = nullptr;
  failed["failure"] = "stopped";
  const SignalThresholds calm = thresholds_of({skipped, failed, measured_run(9.0, 9.0, 101, 99)}, kSteps);
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
    const SignalThresholds found = thresholds_of(none, kSteps);
    EXPECT_EQ(found.why_none.find("norms are 0") != std::string::npos, none == Json::array({still}));
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
  EXPECT_EQ(options.warmup, options.window) << "as the thresholds were measured";
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

// ---- Simulated healthy runs: losses with an exponential tail, norms that are lognormal or have a Pareto tail.

enum class Tail : uint8_t { kLognormal, kPareto };

struct HealthyRun {
  std::vector<double> losses{}, norms{};
};

HealthyRun healthy_run(Tail tail, double spread, uint32_t number, int64_t steps) {
  HealthyRun run;
  for (int64_t step = 0; step < steps; ++step) {
    const PhiloxCounter words = philox(20280, {number, static_cast<uint32_t>(step), static_cast<uint32_t>(tail), 0});
    const auto exponential = [&](size_t word) { return -std::log((words[word] + 1.0) * 0x1p-32); };
    const auto normal = static_cast<double>(normal_pair(words[2], words[3])[0]);
    run.losses.push_back(3.0 + 0.25 * exponential(0));
    run.norms.push_back(std::exp(spread * (tail == Tail::kPareto ? exponential(1) : normal)));
  }
  return run;
}

// By three runs of 400 steps, whose draws no other number has.
SignalThresholds measured_thresholds(Tail tail, double spread, uint32_t number, int64_t steps) {
  Json runs = Json::array();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    const HealthyRun run = healthy_run(tail, spread, 4 * number + seed, 400);
    runs.push_back(measured_run(3.0, 1.0, 400));
    runs.back()["steps"]["loss"] = run.losses;
    runs.back()["steps"]["grad_norm"] = run.norms;
  }
  return thresholds_of(runs, steps);
}

// Whether the ladder of the guide would go up.
bool goes_up(const SignalThresholds& thresholds, const HealthyRun& run) {
  static const AdaptiveOptions kWritten = guide_of("bf16", "fp32", wanted_config()).config.precision_adaptive.options;
  AdaptiveOptions options = kWritten;
  options.loss_rise = thresholds.loss_rise;
  options.norm_factor = thresholds.norm_factor;
  AdaptivePrecision ladder(options, 2);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    ladder.applied(static_cast<int64_t>(step) + 1, run.losses[step], run.norms[step]);
    if (!ladder.state().bad.empty()) return true;
  }
  return false;
}

TEST(ProductionGuide, HealthyRunsRaiseFewerAlarmsThanStated) {
  for (const auto& [tail, spread] : {std::pair(Tail::kLognormal, 0.5), {Tail::kPareto, 0.25}, {Tail::kPareto, 0.5}}) {
    for (const auto& [steps, trials] : {std::pair<int64_t, uint32_t>{1500, 40}, {30000, 5}}) {
      double alarms = 0.0;
      for (uint32_t trial = 0; trial < trials; ++trial) {
        const SignalThresholds found = measured_thresholds(tail, spread, trial, steps);
        alarms += goes_up(found, healthy_run(tail, spread, 4 * trial + 3, steps)) ? 1.0 : 0.0;
      }
      EXPECT_LE(alarms, kFalseAlarm * trials) << static_cast<int>(tail) << ' ' << spread << ' ' << steps;
    }
  }
}

TEST(ProductionGuide, QuietNormsFindATenfoldStep) {
  const SignalThresholds found = measured_thresholds(Tail::kLognormal, 0.05, 0, 1500);
  EXPECT_DOUBLE_EQ(found.norm_factor, 4.0);
  EXPECT_DOUBLE_EQ(found.tenfold, 1.0);
  HealthyRun run = healthy_run(Tail::kLognormal, 0.05, 3, 1500);
  EXPECT_FALSE(goes_up(found, run));
  run.norms[700] *= 10.0;
  EXPECT_TRUE(goes_up(found, run));
}

// The stated power is that of another run.
TEST(ProductionGuide, HeavyTailsFindFewTenfoldSteps) {
  for (const double spread : {0.15, 0.2, 0.3}) {
    const SignalThresholds found = measured_thresholds(Tail::kPareto, spread, 1, 1500);
    const HealthyRun run = healthy_run(Tail::kPareto, spread, 7, 2100);
    double ten = 0.0, hundred = 0.0;
    for (size_t step = 100; step < run.norms.size(); ++step) {
      std::vector<double> last(run.norms.begin() + static_cast<int64_t>(step) - 100,
                               run.norms.begin() + static_cast<int64_t>(step));
      std::ranges::nth_element(last, last.begin() + 89);
      ten += 10.0 * run.norms[step] / last[89] >= found.norm_factor ? 1.0 / 2000 : 0.0;
      hundred += 100.0 * run.norms[step] / last[89] >= found.norm_factor ? 1.0 / 2000 : 0.0;
    }
    EXPECT_NEAR(found.tenfold, ten, 0.05) << spread;
    EXPECT_NEAR(found.hundredfold, hundred, 0.05) << spread;
    if (spread == 0.3) {
      EXPECT_LT(found.tenfold, 0.2);
      EXPECT_GT(found.hundredfold, 0.8);
    }
  }
}

TEST(ProductionGuide, SaysHowSureAnAlarmIs) {
  const ProductionGuide guide = guide_of("bf16", "fp32", wanted_config());
  const Json& monitor = guide.figures.at("monitor");
  EXPECT_EQ(monitor[0].at("watch"),
            "alarm at 1.3 nats above the median of 100 steps: with the norm's, a false alarm in at most 5 % of runs of "
            "4000 steps like the 900 measured, if tails go on as the largest tenth to fiftieth of the measured ones "
            "(batches of 1024 tokens; smaller ones vary more)");
  EXPECT_EQ(
      monitor[1].at("watch"),
      "alarm at 7.1 times the 0.9 quantile of 100 steps: it finds a step of ten times its norm in 100 % of cases, "
      "of a hundred times in 100 %");
}

ProductionGuide guide_of_runs(const Json& runs, int64_t steps = kSteps) {
  Measurement measurement = measurement_of_all();
  for (MeasuredPrecision& one : measurement.precisions) one.runs = runs;
  return production_guide(wanted_config({fmt::format("train.steps={}", steps)}), measurement, *measurement.find("bf16"),
                          measurement.find("fp32"));
}

TEST(ProductionGuide, SaysWhyItHasNoThreshold) {
  const auto said = [](const Json& runs) { return guide_of_runs(runs).figures.at("monitor")[0].at("watch"); };
  Json no_norm = measured_run(), nan_loss = measured_run(), nan_norm = measured_run();
  for (Json& norm : no_norm["steps"]["grad_norm"]) norm = 0.0;
  nan_loss["steps"]["loss"][200] = nan_norm["steps"]["grad_norm"][20] = nullptr;
  for (const Json& run : {run_of_one_norm(), no_norm, nan_loss, nan_norm}) {
    EXPECT_EQ(said(Json::array({run})), "no threshold: some losses or norms are not finite, or norms are 0");
  }
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

// The ladder compares from the 101st step on.
TEST(ProductionGuide, ARunNoLongerThanTheWindowHasNoThreshold) {
  const Json runs = Json::array({measured_run()});
  EXPECT_FALSE(thresholds_of(runs, 1).is_known());
  EXPECT_FALSE(thresholds_of(runs, 100).is_known());
  EXPECT_TRUE(thresholds_of(runs, 101).is_known());
  const ProductionGuide guide = guide_of_runs(runs, 100);
  EXPECT_EQ(guide.figures.at("measured_thresholds"), false);
  EXPECT_EQ(guide.config.precision_adaptive.options.loss_rise, 0.0);
  const Json& monitor = guide.figures.at("monitor");
  EXPECT_EQ(monitor[0].at("watch"),
            "no threshold: the run has 100 steps, and only those after the first 100 are compared");
  EXPECT_EQ(monitor[1].at("watch"), "no threshold, for the same reason");
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

// Readers refuse a damaged file by its name, or need nothing of the damage: no other error ends the program.
TEST(ProductionGuide, OfADamagedComparisonIsRefusedByItsName) {
  Json bf16 = testing::measured("bf16", testing::kBf16, "equal");
  bf16["summary"]["outlier"] = {{"text", "seed 3 stands apart"}};
  Json comparison = testing::prepared_comparison({testing::measured("fp32", testing::kFp32, "baseline"), bf16});
  for (Json& one : comparison["precisions"]) {
    one["runs"] = Json::array({measured_run(3.6, 4.0, 2)});
    one["summary"]["runs"] = one["summary"]["succeeded"] = one["summary"]["loss_difference"]["pairs"] = 1;
  }
  const Config config = wanted_config();
  int refused = 0;
  testing::for_each_damage(comparison, [&](const std::string& damage, const Json& damaged) {
    try {
      Measurement measurement = read_measurement(testing::written("damaged.json", damaged.dump()), config);
      std::vector<Advice> devices = {advise("a", config, candidates_of(config, measurement), 1, find_hardware("h100"))};
      to_text(report_recommendations("a", config, std::move(measurement), std::move(devices)));
    } catch (const ConfigError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("damaged.json"), std::string::npos) << damage << ": " << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << damage << ": " << error.what();
    }
  });
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace mantissa
