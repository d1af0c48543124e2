// Summaries of made-up runs: verdicts, margins and shares. Loss scales that gradients of known sizes need.
#include "tools/lab/compare/precision_comparison.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/quant/exponent_histogram.h"
#include "tests/tools/config/minimal.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

// It learns 1 nat, and nothing in its last steps.
TrainingRecord run(double loss, double seconds = 0.01) {
  TrainingRecord record{.steps = {}, .validation = {{20, loss}}, .tokens_per_step = 100};
  for (int step = 0; step < 20; ++step) {
    record.steps.push_back({.loss = loss + (step < 4 ? 1.0 : 0.0), .grad_norm = 2.0, .seconds = seconds});
  }
  record.peak_memory_bytes = 1000;
  return record;
}

TrainingRecord failed() {
  TrainingRecord record = run(std::numeric_limits<double>::quiet_NaN());
  record.steps.resize(2);
  record.steps[0] = {
      .loss = 3.0, .grad_norm = HUGE_VAL, .scale = 8.0f, .result = StepResult::kOverflow, .seconds = 0.01};
  record.steps[1] = {
      .loss = HUGE_VAL, .grad_norm = HUGE_VAL, .scale = 4.0f, .result = StepResult::kFault, .seconds = 0.01};
  record.failure = "stopped after 1 faults in a row";
  return record;
}

PrecisionRuns runs_of(const std::string& name, std::vector<TrainingRecord> runs) {
  PrecisionRuns precision{.name = name, .config = testing::minimal_config(), .runs = std::move(runs)};
  precision.places.resize(precision.runs.size());
  return precision;
}

PrecisionComparison comparison(std::vector<TrainingRecord> baseline, std::vector<TrainingRecord> other,
                               std::optional<double> nats = std::nullopt) {
  const LossMargin margin = nats ? LossMargin{.value = *nats, .is_share = false} : LossMargin();
  PrecisionComparison found{.options = {.title = "made.yaml", .baseline = "", .margin = margin},
                            .config = testing::minimal_config(),
                            .device = "none",
                            .seeds = {},
                            .precisions = {}};
  for (size_t seed = 1; seed <= baseline.size(); ++seed) found.seeds.push_back(seed);
  found.precisions.push_back(runs_of("fp32", std::move(baseline)));
  found.precisions.push_back(runs_of("bf16", std::move(other)));
  return found;
}

std::string text_of(const PrecisionComparison& found) { return comparison_text(to_json(found)); }

std::string verdict_of(const PrecisionComparison& found, size_t precision) {
  return summary_of(found, precision)["verdict"];
}

TEST(PrecisionOrder, EveryPrecisionHasEveryPlaceOnce) {
  for (size_t place = 0; place < 4; ++place) {
    std::vector<bool> seen(4);
    for (size_t seed = 0; seed < 4; ++seed) seen[precision_in_turn(seed, place, 4)] = true;
    EXPECT_EQ(seen, std::vector<bool>(4, true)) << place;
  }
}

TEST(PrecisionSummary, TheMarginIsAShareOfWhatTheBaselineLearns) {
  const auto found = comparison({run(2.0), run(2.2), run(2.1)}, {run(2.0001), run(2.2002), run(2.0999)});
  EXPECT_NEAR(margin_of(found), 0.0025, 1e-12) << "whatever seeds do";
  const Json summary = summary_of(found, 1);
  EXPECT_EQ(summary["verdict"], "equal");
  EXPECT_EQ(summary["why"], "");
  EXPECT_EQ(verdict_of(found, 0), "baseline");
  EXPECT_GT(summary["power"], 0.99);
  EXPECT_NE(testing::unwrapped(text_of(found)).find("equal within 0.0025 (0.25 % of what the baseline learns)"),
            std::string::npos)
      << text_of(found);
  EXPECT_EQ(margin_of(comparison({run(2.0), run(2.2)}, {run(2.0), run(2.0)}, 0.5)), 0.5);
}

TEST(PrecisionSummary, TooFewSeedsSayHowManyWouldTell) {
  const Json summary = summary_of(comparison({run(2.0), run(2.2), run(2.1)}, {run(2.002), run(2.198), run(2.1)}), 1);
  EXPECT_EQ(summary["verdict"], "inconclusive");
  // The deviation is 0.002: margin sqrt(n) / 0.002 = t(0.975) + t(0.9), n - 1 degrees: n = 9 gives 3.75 > 3.70.
  // Three seeds show less than half of the true deviation in a fifth of cases.
  EXPECT_EQ(
      summary["why"],
      "too few seeds to tell: if the precisions do not differ, about 32 are needed to say so in 80 % of cases (9 if "
      "all scatter as these few do; after 3 seeds that is enough in 50 to 71 %). Compare again with such a number of "
      "--seeds, fixed beforehand: who adds seeds, from 3 on, until the verdict is equal errs in 8 % of cases with up "
      "to 10 seeds, in 12 % with up to 20, not in 2.5 %");
  EXPECT_NEAR(summary["power"].get<double>(), 0.1108, 1e-4);  // by SciPy's quadrature
  EXPECT_EQ(
      summary_of(comparison({run(2.0)}, {run(2.0)}), 1)["why"],
      "one run cannot show how much results vary by chance: verdicts are given from 2 seeds on: use more --seeds");
  const auto why = [](const Runs& runs) {
    return summary_of(comparison({run(2.0), run(2.2), run(2.1)}, runs), 1)["why"].get<std::string>();
  };
  EXPECT_TRUE(
      why({run(12.0), run(-8.0), run(2.1)}).ends_with("not even 10,000 would be enough: give a larger --margin"));
  EXPECT_EQ(why({run(2.0007), run(2.20125), run(2.1018)}),
            "too few seeds to tell: the difference is near the margin: compare again with more --seeds");
}

TEST(PrecisionSummary, OneSeedFarFromTheOthersIsNamedBesideTheVerdict) {
  std::vector<TrainingRecord> baseline, other;
  for (int seed = 0; seed < 10; ++seed) {
    baseline.push_back(run(2.0));
    other.push_back(run(seed == 7 ? 2.02 : 2.0 + 1e-5 * seed));
  }
  const auto found = comparison(baseline, other, 0.015);
  const Json summary = summary_of(found, 1), outlier = summary["outlier"];
  EXPECT_EQ(summary["verdict"], "equal") << "in the mean, the outlier included";
  EXPECT_EQ(summary["why"], "");
  EXPECT_EQ(outlier["seed"], 8);
  EXPECT_NEAR(outlier["difference"].get<double>(), 0.02, 1e-12);
  EXPECT_EQ(outlier["verdict_without"], "equal");
  const std::string said = "seed 8 stands apart from the others with +0.02 nats; without it the verdict is equal";
  EXPECT_EQ(outlier_of(summary), said);
  EXPECT_NE(text_of(found).find("bf16: " + said), std::string::npos) << text_of(found);
  const Json narrow = summary_of(comparison(baseline, other, 0.005), 1);
  EXPECT_EQ(narrow["verdict"], "inconclusive");
  EXPECT_EQ(narrow["outlier"]["verdict_without"], "equal");
  EXPECT_NE(testing::unwrapped(text_of(comparison(baseline, other, 0.005))).find("; seed 8 stands apart"),
            std::string::npos);
  const Json wide = summary_of(comparison(baseline, other, 0.03), 1);
  EXPECT_EQ(wide["verdict"], "equal");
  EXPECT_EQ(wide["outlier"], nullptr) << "it is within the margin";
  EXPECT_EQ(outlier_of(wide), "");
  EXPECT_EQ(outlier_of(Json::object()), "") << "of an earlier version";
}

TEST(PrecisionSummary, EqualSaysWhatSoFewSeedsCannotExclude) {
  const std::string equal =
      text_of(comparison({run(2.0), run(2.2), run(2.1)}, {run(2.0001), run(2.2002), run(2.0999)}));
  EXPECT_NE(testing::unwrapped(equal).find("Equal means equal on average: 3 seeds cannot exclude that up to 63 % of "
                                           "runs are bad (95 % confidence)."),
            std::string::npos)
      << equal;
  const std::string worse = text_of(comparison({run(2.0), run(2.2), run(2.1)}, {run(2.1), run(2.3), run(2.201)}));
  EXPECT_EQ(worse.find("Equal means"), std::string::npos) << worse;
}

// Runs still learning at their end, and the same with validation losses higher by `rise` times (50 + loss).
auto short_runs(double rise) {
  std::vector<TrainingRecord> baseline, other;
  for (const double loss : {2.0, 2.2, 2.1}) {
    baseline.push_back(run(loss));
    for (int step = 0; step < 20; ++step)
      baseline.back().steps[static_cast<size_t>(step)].loss = loss + 1 - step / 19.0;
    other.push_back(baseline.back());
    other.back().steps[1].loss += 1e-6;
    other.back().validation.back().loss += rise * (50 + loss);
  }
  return comparison(baseline, other);
}

TEST(PrecisionSummary, TooFewStepsAreNotCalledEqual) {
  const auto found = short_runs(0.0);
  const Json summary = summary_of(found, 1);
  EXPECT_EQ(summary["verdict"], "inconclusive");
  EXPECT_NE(text_of(found).find("bf16: too few steps to tell: 27 % of what the baseline learnt"), std::string::npos)
      << text_of(found);
}

// They say nothing of longer runs, whichever side of 0 the interval is on, and so do more seeds.
TEST(PrecisionSummary, DifferencesWithinTheMarginOfShortRunsAreInconclusive) {
  const Json summary = summary_of(short_runs(1e-5), 1);
  EXPECT_GT(summary["loss_difference"]["interval"]["low"], 0.0);
  EXPECT_EQ(summary["verdict"], "inconclusive");
  EXPECT_EQ(summary["power"], 0.0) << "of the whole rule";
  EXPECT_NE(summary["why"].get<std::string>().find("too few steps to tell"), std::string::npos);
}

TEST(PrecisionSummary, NothingIsEqualToRunsThatDiverge) {
  TrainingRecord diverged = run(9.0);
  for (TrainedStep& step : diverged.steps) step.loss = 8.0;
  const std::vector<TrainingRecord> baseline = {run(2.0), run(2.2), diverged};
  EXPECT_EQ(margin_of(comparison(baseline, baseline)), 0.0);
  EXPECT_EQ(verdict_of(comparison(baseline, {run(2.5), run(2.1), run(8.8)}), 1), "inconclusive");
  // Losses on the same text show whether the run learned.
  for (TrainedStep& step : diverged.steps) step.loss = 9.5;
  diverged.validation = {{0, 8.9}, {20, 9.0}};
  EXPECT_EQ(margin_of(comparison({run(2.0), diverged}, baseline)), 0.0);
  diverged.validation = {{0, 9.1}, {20, 9.0}};
  EXPECT_GT(margin_of(comparison({run(2.0), diverged}, baseline)), 0.0);
}

TEST(PrecisionSummary, DifferencesAreOfTheSameSeed) {
  // Seeds change the loss ten times as much as the precision does, whose effect is the same in each pair.
  const auto found = comparison({run(2.0), run(3.0), run(4.0)}, {run(2.1), run(3.11), run(4.09)}, 0.01);
  const Json summary = summary_of(found, 1);
  EXPECT_EQ(summary["verdict"], "worse");
  EXPECT_NEAR(summary["loss_difference"]["mean"].get<double>(), 0.1, 1e-12);
  EXPECT_EQ(verdict_of(comparison({run(2.1), run(3.11), run(4.09)}, {run(2.0), run(3.0), run(4.0)}, 0.01), 1),
            "better");
  EXPECT_EQ(verdict_of(comparison({run(2.0), run(2.0)}, {run(2.5), run(1.5)}, 0.01), 1), "inconclusive");
  EXPECT_EQ(verdict_of(comparison({run(2.0)}, {run(9.0)}, 0.01), 1), "inconclusive") << "one pair";
}

TEST(PrecisionSummary, FailingWhereTheBaselineDoesNotIsWorse) {
  const Json summary = summary_of(comparison({run(2.0), run(2.0)}, {failed(), failed()}), 1);
  EXPECT_EQ(summary["verdict"], "worse");
  EXPECT_EQ(summary["succeeded"], 0);
  EXPECT_EQ(summary["failure"], "stopped after 1 faults in a row");
  EXPECT_EQ(summary["final_loss"], nullptr);
  EXPECT_EQ(summary["loss_difference"], nullptr);
  EXPECT_EQ(summary["overflow_share"], 0.5);
  EXPECT_EQ(summary["fault_share"], 0.5);
  EXPECT_EQ(summary["smallest_scale"], 4.0f);
  EXPECT_EQ(summary["scale_changes"], 1.0);
  EXPECT_EQ(verdict_of(comparison({failed(), run(2.0)}, {run(2.0), run(2.0)}), 1), "better");
}

TEST(PrecisionSummary, FailuresThatTellNothingAreInconclusiveWithAReason) {
  const Json mixed = summary_of(comparison({failed(), run(2.0)}, {run(2.0), failed()}), 1);
  EXPECT_EQ(mixed["verdict"], "inconclusive");
  EXPECT_EQ(mixed["why"], "the precision fails with some seed, the baseline with another: neither is the worse");
  const auto none = comparison({failed()}, {failed()});
  EXPECT_EQ(summary_of(none, 1)["verdict"], "inconclusive");
  EXPECT_EQ(summary_of(none, 1)["why"], "the precision and the baseline fail with every seed: no losses to compare");
  EXPECT_EQ(summary_of(none, 0)["why"], "") << "the baseline";
}

TEST(PrecisionSummary, TimesAreComparedSeedBySeed) {
  const Json summary = summary_of(comparison({run(2.0, 0.01), run(2.0, 0.02)}, {run(2.0, 0.005), run(2.0, 0.02)}), 1);
  EXPECT_DOUBLE_EQ(summary["step_seconds"]["mean"].get<double>(), 0.0125);
  EXPECT_DOUBLE_EQ(summary["tokens_per_second"].get<double>(), 8000.0);
  EXPECT_DOUBLE_EQ(summary["time_ratio"]["mean"].get<double>(), 0.75);
  EXPECT_DOUBLE_EQ(summary["time_ratio"]["low"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(summary["time_ratio"]["high"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(summary["grad_norm"].get<double>(), 2.0);
}

// A rise in step 15 of 20 has undone the 15.
TEST(PrecisionSummary, StepsThatRollbacksUndidCount) {
  TrainingRecord rolled = run(2.0);
  rolled.undone = 15;
  const auto found = comparison({run(2.0), run(2.0)}, {rolled, run(2.0)});
  const Json summary = summary_of(found, 1);
  EXPECT_DOUBLE_EQ(summary["time_ratio"]["high"].get<double>(), 1.75);
  EXPECT_DOUBLE_EQ(summary["time_ratio"]["low"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(summary["step_seconds"]["mean"].get<double>(), 0.01) << "of a single step";
  EXPECT_DOUBLE_EQ(summary["undone_share"].get<double>(), 0.375);
  EXPECT_EQ(to_json(found)["precisions"][1]["runs"][0]["undone_steps"], 15);
  EXPECT_NE(text_of(found).find("37.5 %"), std::string::npos) << text_of(found);
  EXPECT_EQ(text_of(comparison({run(2.0)}, {run(2.0)})).find("trained"), std::string::npos)
      << "no column without rollbacks";
  const Json rated = utility_of(found, {.time = 1.0}, {});
  EXPECT_NEAR(rated["precisions"][1]["time"].get<double>(), 0.5 * std::log(1.75), 1e-12);
}

// For example, it does not fit into device memory.
TEST(PrecisionSummary, OfARunThatNeverBeganNothingIsKnown) {
  const auto found = comparison({run(2.0)}, {TrainingRecord{.steps = {}, .validation = {}, .failure = "no memory"}});
  const Json summary = summary_of(found, 1);
  EXPECT_EQ(summary["verdict"], "worse");
  const Json written = Json::parse(summary.dump());  // as in a file
  for (const char* unknown : {"step_seconds", "time_ratio", "tokens_per_second", "grad_norm", "peak_memory_bytes",
                              "memory_ratio", "smallest_scale", "last_scale"}) {
    EXPECT_EQ(written.at(unknown), nullptr) << unknown;
  }
  EXPECT_EQ(summary_of(found, 0)["memory_ratio"], 1.0);
  EXPECT_NE(text_of(found).find("bf16: 1 of 1 run failed: no memory"), std::string::npos);
  EXPECT_EQ(to_json(found).at("precisions")[1].at("summary").at("peak_memory_bytes"), nullptr);
}

TEST(ComparisonReport, TellsFailuresAndRefusals) {
  PrecisionComparison found = comparison({run(2.0), run(2.1)}, {failed(), run(2.1)});
  found.precisions.push_back({.name = "nvfp4", .config = found.config, .refusal = "blocks of 16\nmore"});
  const std::string text = text_of(found);
  EXPECT_LT(text.find("Verdict:"), text.find("precision  "));
  EXPECT_NE(text.find("bf16: 1 of 2 runs failed: stopped after 1 faults in a row\n"), std::string::npos) << text;
  EXPECT_NE(text.find("nvfp4: blocks of 16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1/2"), std::string::npos) << text;
  const Json data = Json::parse(to_json(found).dump());  // as in a file
  EXPECT_EQ(data.at("precisions")[1].at("runs")[0].at("failure"), "stopped after 1 faults in a row");
  EXPECT_EQ(data.at("precisions")[1].at("runs")[0].at("steps").at("loss"), (Json{3.0, nullptr}));
  EXPECT_EQ(data.at("precisions")[1].at("summary").at("verdict"), "worse");
  EXPECT_EQ(data.at("precisions")[2].at("refusal"), "blocks of 16\nmore");
}

// Adds `count` powers of two with this exponent.
void add(ExponentHistogram& histogram, int exponent, int64_t count) {
  histogram.counts[(exponent - kMinExponent) * kBinsPerExponent] += count;
  histogram.amax = std::max(histogram.amax, std::bit_cast<uint32_t>(static_cast<float>(std::ldexp(1.0, exponent))));
}

TEST(GradientUnderflow, EveryFormatHasItsOwnScale) {
  ExponentHistogram histogram{};
  add(histogram, -30, 50);
  add(histogram, -10, 50);
  const Json found = gradient_underflow(histogram, 3);
  EXPECT_EQ(found["steps"], 3);
  EXPECT_EQ(found["elements"], 100);
  ASSERT_EQ(found["formats"].size(), 5u);
  const Json& fp16 = found["formats"][0];
  const size_t unscaled = 8;
  EXPECT_EQ(fp16["exponents"][unscaled], 0);
  EXPECT_EQ(fp16["underflow"][unscaled], 0.5) << "2^-30 is below half of 2^-24";
  EXPECT_EQ(fp16["underflow"][unscaled + 6], 0.0);
  EXPECT_EQ(fp16["overflow"][unscaled + 25], 0.0) << "2^15";
  EXPECT_EQ(fp16["overflow"][unscaled + 26], 0.5) << "2^16";
  // The largest 2^floor(log2(65504 / (16 * 2^-10))).
  EXPECT_EQ(fp16["recommended"]["exponent"], 21);
  EXPECT_EQ(found["formats"][2]["recommended"]["exponent"], 14) << "448 / (16 * 2^-10)";
}

TEST(GradientUnderflow, AFormatThatLosesNothingNeedsNoScale) {
  ExponentHistogram histogram{};
  add(histogram, -30, 50);
  const Json bf16 = gradient_underflow(histogram, 1)["formats"][1];
  EXPECT_EQ(bf16["recommended"]["exponent"], 0);
  EXPECT_EQ(bf16["recommended"]["underflow"], 0.0);
}

TEST(GradientUnderflow, AFormatThatLosesMostGradientsHasNoScale) {
  ExponentHistogram histogram{};
  add(histogram, -30, 99);
  add(histogram, -4, 1);
  const Json e2m1 = gradient_underflow(histogram, 1)["formats"][4];
  EXPECT_EQ(e2m1["recommended"], nullptr);
  EXPECT_EQ(
      e2m1["why_none"],
      "100 % of the gradients of activations become 0 in e2m1 even at 2^2, and larger scales leave no room for the "
      "largest ones");
}

}  // namespace
}  // namespace mantissa
