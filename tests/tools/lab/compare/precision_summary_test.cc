// What runs come to: verdicts, margins and shares of made-up runs.
#include "tools/lab/compare/precision_summary.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

#include "tests/tools/config/minimal.h"
#include "tools/lab/compare/comparison_report.h"

namespace mantissa {
namespace {

using V = ComparisonVerdict;

TrainingRecord run(double loss, double seconds = 0.01) {
  TrainingRecord record{.steps = {}, .validation = {{4, loss}}, .tokens_per_step = 100};
  for (int step = 0; step < 4; ++step) record.steps.push_back({.loss = loss + 1, .grad_norm = 2.0, .seconds = seconds});
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
                               std::optional<double> margin = std::nullopt) {
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

TEST(PrecisionOrder, EveryPrecisionHasEveryPlaceOnce) {
  for (size_t place = 0; place < 4; ++place) {
    std::vector<bool> seen(4);
    for (size_t seed = 0; seed < 4; ++seed) seen[precision_in_turn(seed, place, 4)] = true;
    EXPECT_EQ(seen, std::vector<bool>(4, true)) << place;
  }
}

TEST(PrecisionSummary, WhatSeedsChangeIsTheMargin) {
  const auto found = comparison({run(2.0), run(2.2), run(2.1)}, {run(2.001), run(2.202), run(2.099)});
  EXPECT_NEAR(margin_of(found), 0.1, 1e-12);
  EXPECT_EQ(summary_of(found, 1).verdict, V::kEqual);
  EXPECT_EQ(margin_of(comparison({run(2.0)}, {run(2.0)})), 0.0);
  EXPECT_EQ(margin_of(comparison({run(2.0), run(2.2)}, {run(2.0), run(2.0)}, 0.5)), 0.5);
}

TEST(PrecisionSummary, NothingIsEqualToRunsThatDiverge) {
  TrainingRecord diverged = run(9.0);
  for (TrainedStep& step : diverged.steps) step.loss = 8.0;
  const std::vector<TrainingRecord> baseline = {run(2.0), run(2.2), diverged};
  EXPECT_EQ(margin_of(comparison(baseline, baseline)), 0.0);
  EXPECT_EQ(summary_of(comparison(baseline, {run(2.5), run(2.1), run(8.8)}), 1).verdict, V::kInconclusive);
  // What it learnt is told by losses on the same text.
  for (TrainedStep& step : diverged.steps) step.loss = 9.5;
  diverged.validation = {{0, 8.9}, {4, 9.0}};
  EXPECT_EQ(margin_of(comparison({run(2.0), diverged}, baseline)), 0.0);
  diverged.validation = {{0, 9.1}, {4, 9.0}};
  EXPECT_GT(margin_of(comparison({run(2.0), diverged}, baseline)), 0.0);
}

TEST(PrecisionSummary, DifferencesAreOfTheSameSeed) {
  // Seeds change ten times what the precision does, which is the same in each pair.
  const auto found = comparison({run(2.0), run(3.0), run(4.0)}, {run(2.1), run(3.11), run(4.09)}, 0.01);
  const PrecisionSummary summary = summary_of(found, 1);
  EXPECT_EQ(summary.verdict, V::kWorse);
  EXPECT_NEAR(summary.loss_difference->mean, 0.1, 1e-12);
  EXPECT_EQ(summary_of(comparison({run(2.1), run(3.11), run(4.09)}, {run(2.0), run(3.0), run(4.0)}, 0.01), 1).verdict,
            V::kBetter);
  EXPECT_EQ(summary_of(comparison({run(2.0), run(2.0)}, {run(2.5), run(1.5)}, 0.01), 1).verdict, V::kInconclusive);
  EXPECT_EQ(summary_of(comparison({run(2.0)}, {run(9.0)}, 0.01), 1).verdict, V::kInconclusive) << "one pair";
}

TEST(PrecisionSummary, FailingWhereTheBaselineDoesNotIsWorse) {
  const PrecisionSummary summary = summary_of(comparison({run(2.0), run(2.0)}, {failed(), failed()}), 1);
  EXPECT_EQ(summary.verdict, V::kWorse);
  EXPECT_EQ(summary.succeeded, 0);
  EXPECT_EQ(summary.failure, "stopped after 1 faults in a row");
  EXPECT_FALSE(summary.loss);
  EXPECT_FALSE(summary.loss_difference);
  EXPECT_EQ(summary.overflow_share, 0.5);
  EXPECT_EQ(summary.fault_share, 0.5);
  EXPECT_EQ(summary.smallest_scale, 4.0f);
  EXPECT_EQ(summary.scale_changes, 1.0);
  EXPECT_EQ(summary_of(comparison({failed(), run(2.0)}, {run(2.0), run(2.0)}), 1).verdict, V::kBetter);
  EXPECT_EQ(summary_of(comparison({failed(), run(2.0)}, {run(2.0), failed()}), 1).verdict, V::kInconclusive);
}

TEST(PrecisionSummary, TimesAreComparedSeedBySeed) {
  const PrecisionSummary summary =
      summary_of(comparison({run(2.0, 0.01), run(2.0, 0.02)}, {run(2.0, 0.005), run(2.0, 0.02)}), 1);
  EXPECT_DOUBLE_EQ(summary.step_seconds->mean, 0.0125);
  EXPECT_DOUBLE_EQ(*summary.tokens_per_second, 8000.0);
  EXPECT_DOUBLE_EQ(summary.time_ratio->mean, 0.75);
  EXPECT_DOUBLE_EQ(summary.time_ratio->low, 0.5);
  EXPECT_DOUBLE_EQ(summary.time_ratio->high, 1.0);
  EXPECT_DOUBLE_EQ(*summary.grad_norm, 2.0);
}

// As where the device has no memory for it.
TEST(PrecisionSummary, OfARunThatNeverBeganNothingIsKnown) {
  const auto found = comparison({run(2.0)}, {TrainingRecord{.steps = {}, .validation = {}, .failure = "no memory"}});
  const PrecisionSummary summary = summary_of(found, 1);
  EXPECT_EQ(summary.verdict, V::kWorse);
  EXPECT_FALSE(summary.step_seconds || summary.time_ratio || summary.tokens_per_second || summary.grad_norm);
  EXPECT_FALSE(summary.peak_memory_bytes || summary.memory_ratio || summary.smallest_scale || summary.last_scale);
  EXPECT_EQ(summary_of(found, 0).memory_ratio, 1.0);
  EXPECT_NE(to_text(found).find("bf16: 1 of 1 runs failed: no memory"), std::string::npos);
  EXPECT_EQ(to_json(found).at("precisions")[1].at("summary").at("peak_memory_bytes"), nullptr);
}

TEST(ComparisonReport, TellsFailuresAndRefusals) {
  PrecisionComparison found = comparison({run(2.0), run(2.1)}, {failed(), run(2.1)});
  found.precisions.push_back({.name = "nvfp4", .config = found.config, .refusal = "blocks of 16\nmore"});
  const std::string text = to_text(found);
  EXPECT_LT(text.find("verdict:"), text.find("precision  "));
  EXPECT_NE(text.find("bf16: 1 of 2 runs failed: stopped after 1 faults in a row\n"), std::string::npos) << text;
  EXPECT_NE(text.find("nvfp4: blocks of 16\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1/2"), std::string::npos) << text;
  const nlohmann::json data = to_json(found);
  EXPECT_EQ(data.at("precisions")[1].at("runs")[0].at("failure"), "stopped after 1 faults in a row");
  EXPECT_EQ(data.at("precisions")[1].at("runs")[0].at("steps").at("loss"), (nlohmann::json{3.0, nullptr}));
  EXPECT_EQ(data.at("precisions")[1].at("summary").at("verdict"), "worse");
  EXPECT_EQ(data.at("precisions")[2].at("refusal"), "blocks of 16\nmore");
}

}  // namespace
}  // namespace mantissa
