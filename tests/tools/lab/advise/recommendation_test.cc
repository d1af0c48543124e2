// Recommendations from prepared comparisons and step times: small numbers by hand, and all cases against the rule
// written in another way.
#include "tools/lab/advise/recommendation.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "tests/testing/error_of.h"
#include "tests/tools/lab/advise/prepared_comparison.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::kBf16;
using testing::kFp16;
using testing::kFp32;
using testing::kTf32;
using testing::measured;
using testing::measurement_of_all;
using testing::minimal_config;
using testing::prepared_comparison;
using testing::recipe;
using testing::wanted_config;
using testing::written;

struct Step {
  const char* name;
  double ms;
  Support support = Support::kNative;
  bool fits = true;
};

Advice prepared_advice(const std::vector<Step>& steps) {
  Advice advice{
      .model = "wanted.yaml", .device = "a device", .hardware = &find_hardware("h100"), .parameters = 2500000};
  for (const Step& step : steps) {
    EvaluatedPrecision& one = advice.evaluations.emplace_back(EvaluatedPrecision{.name = step.name});
    one.support = step.support;
    one.prediction.kernel_seconds = 1e-3 * step.ms;
    one.fits = step.fits;
  }
  std::ranges::stable_sort(advice.evaluations, {},
                           [](const EvaluatedPrecision& one) { return one.prediction.step_seconds(); });
  return advice;
}

Recommendation recommend(const std::vector<Step>& steps) {
  return recommend(prepared_advice(steps), measurement_of_all(), 3);
}

using Names = std::vector<std::string>;

// ---- The rule.

TEST(Recommendation, IsTheFastestOfThoseThatDidNoDamage) {
  const Recommendation found = recommend({{"fp32", 100},
                                          {"tf32", 60},
                                          {"bf16", 50},
                                          {"fp16", 50},
                                          {"delayed", 40},
                                          {"current", 38},
                                          {"nvfp4", 30},
                                          {"block", 35},
                                          {"bf16:attention_high", 55},
                                          {"mxfp8", 52, Support::kEmulated}});
  EXPECT_EQ(found.chosen, "bf16") << "as fast as fp16, and with more range";
  EXPECT_EQ(found.fastest, "bf16");
  EXPECT_EQ(found.above, "tf32");
  EXPECT_EQ(found.unclear, Names{"delayed"});
  EXPECT_EQ(found.damaged, (Names{"nvfp4", "current"})) << "a failure, and a higher loss";
  EXPECT_EQ(found.unmeasured, Names{"block"}) << "the pattern is slower";
  EXPECT_EQ(found.emulated, Names{"mxfp8"});
}

// 60 ms over 56.1 ms is a gain of 1.0695, over 56.0 ms one of 1.0714.
TEST(Recommendation, StaysWithMorePrecisionBelowAGainOfSevenPerCent) {
  const Recommendation below = recommend({{"fp32", 100}, {"tf32", 60}, {"bf16", 56.1}, {"delayed", 56.1}});
  EXPECT_EQ(below.chosen, "tf32");
  EXPECT_EQ(below.fastest, "bf16");
  EXPECT_EQ(below.above, "fp32");
  EXPECT_EQ(below.unclear, Names{}) << "delayed gains no more";
  const Recommendation beyond = recommend({{"fp32", 100}, {"tf32", 60}, {"bf16", 56.0}, {"delayed", 52.0}});
  EXPECT_EQ(beyond.chosen, "bf16");
  EXPECT_EQ(beyond.unclear, Names{"delayed"});
  EXPECT_EQ(recommend({{"fp32", 100}, {"fp16", 99}, {"bf16", 98}, {"mxfp8", 97}}).chosen, "fp32");
}

TEST(Recommendation, EqualButSlowerIsNotRecommended) {
  const Recommendation found = recommend({{"fp32", 100}, {"bf16", 120, Support::kEmulated}, {"fp16", 30}});
  EXPECT_EQ(found.chosen, "fp16");
  EXPECT_EQ(found.above, "bf16") << "fp16 overflows first";
  EXPECT_EQ(found.emulated, Names{"bf16"});
}

TEST(Recommendation, TakesOnlyWhatRunsAndFits) {
  const Recommendation found = recommend({{"fp32", 100},
                                          {"tf32", 0, Support::kUnavailable},
                                          {"bf16", 50, Support::kNative, /*fits=*/false},
                                          {"fp16", 0, Support::kRefused},
                                          {"delayed", 40, Support::kNative, /*fits=*/false},
                                          {"mxfp8", 60}});
  EXPECT_EQ(found.chosen, "mxfp8");
  EXPECT_EQ(found.above, "fp32");
  EXPECT_EQ(found.unclear, Names{});
  const Recommendation none = recommend({{"fp32", 100, Support::kNative, false}, {"delayed", 40}, {"block", 30}});
  EXPECT_EQ(none.chosen, "");
  EXPECT_EQ(none.above, "");
  EXPECT_EQ(none.unclear, Names{"delayed"}) << "all that run are listed";
  EXPECT_EQ(none.unmeasured, Names{"block"});
}

TEST(Recommendation, NothingClimbsToFp16ThatHasMoreRange) {
  EXPECT_EQ(recommend({{"fp32", 100}, {"fp16", 50}, {"mxfp8", 30}}).above, "fp32");
}

// Draws times and runnable precisions. A ladder of precision, written out here, and a sort decide again.
TEST(Recommendation, AgreesWithTheRuleInAnotherForm) {
  const std::vector<std::string> ladder = {"fp32", "tf32", "bf16", "fp16", "mxfp8"};  // without damage
  const Measurement measurement = measurement_of_all();
  std::mt19937 random(7);
  int lower = 0, stayed = 0;
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<Step> steps;
    for (const char* name : {"fp32", "tf32", "bf16", "fp16", "mxfp8", "delayed", "current", "nvfp4", "block"}) {
      const double ms = 50.0 + static_cast<double>(random() % 1000) / 50.0;
      steps.push_back({name, ms, random() % 5 == 0 ? Support::kUnavailable : Support::kNative, random() % 7 != 0});
    }
    std::map<std::string, double> fitting, harmless;
    for (const Step& step : steps) {
      if (step.support == Support::kUnavailable || !step.fits) continue;
      fitting[step.name] = step.ms;
      if (std::ranges::count(ladder, step.name) > 0) harmless[step.name] = step.ms;
    }
    // The first of the ladder that nothing below it, or above it, beats by 7 %.
    std::string expected;
    for (const std::string& name : ladder) {
      const bool is_beaten = std::ranges::any_of(harmless, [&](const auto& other) {
        return harmless.contains(name) && harmless[name] / other.second >= 1.07;
      });
      if (expected.empty() && harmless.contains(name) && !is_beaten) expected = name;
    }
    const Recommendation found = recommend(prepared_advice(steps), measurement, 3);
    ASSERT_EQ(found.chosen, expected) << draw;
    const auto faster = [&](const std::vector<std::string>& names) {
      std::vector<std::pair<double, std::string>> list;
      for (const std::string& name : names) {
        if (!fitting.contains(name)) continue;
        if (expected.empty() || fitting[expected] / fitting[name] >= 1.07) list.emplace_back(fitting[name], name);
      }
      std::ranges::sort(list);
      Names sorted;
      for (const auto& [ms, name] : list) sorted.push_back(name);
      return sorted;
    };
    EXPECT_EQ(found.unclear, faster({"delayed"}));
    EXPECT_EQ(found.damaged, faster({"current", "nvfp4"}));
    EXPECT_EQ(found.unmeasured, faster({"block"}));
    if (expected.empty()) continue;
    lower += expected != "fp32" ? 1 : 0;
    stayed += found.fastest != found.chosen ? 1 : 0;
  }
  EXPECT_GT(lower, 100);
  EXPECT_GT(stayed, 100);
}

TEST(Recommendation, PrecisionsHaveAnOrder) {
  const std::vector<std::vector<std::string>> falling = {
      {"precision.compute=fp64"},
      kFp32,
      kTf32,
      {"precision.compute=bf16", "precision.pattern=attention_high"},
      kBf16,
      kFp16,
      {"precision.recipe=delayed", "precision.rules=[{match: blocks.0, format: bf16}]"},
      recipe("mxfp8"),
      recipe("nvfp4")};
  int before = -1;
  for (const std::vector<std::string>& settings : falling) {
    const int own = coarseness(minimal_config(settings).precision, 6);
    EXPECT_GT(own, before) << settings.front();
    before = own;
  }
  EXPECT_EQ(coarseness(minimal_config(recipe("current")).precision, 6),
            coarseness(minimal_config({"precision.recipe=mxfp8", "precision.pattern=all_low"}).precision, 6));
}

// ---- Candidates.

TEST(Recommendation, CandidatesAreTheMeasuredPrecisionsOfThisModelAndOthers) {
  const Json all = {measured("fp32", kFp32, "baseline"), measured("fp8", recipe("delayed"), "equal"),
                    measured("plan", {"precision.rules=[{match: blocks.0, format: fp32}]"}, "equal")};
  const Config config = wanted_config({"optimizer.lr=0.5"});
  const Measurement measurement = read_measurement(written("fp8.json", prepared_comparison(all).dump()), config);
  Names names;
  for (const Candidate& one : candidates_of(config, measurement)) {
    names.push_back(one.name);
    EXPECT_EQ(one.config.model, config.model);
    EXPECT_EQ(flatten(one.config).at("optimizer.lr"), "0.5");
    EXPECT_EQ(one.is_configured, one.name == "bf16");
  }
  EXPECT_EQ(names, (Names{"fp32", "fp8", "plan", "tf32", "bf16", "fp16", "current", "block", "mxfp8", "nvfp4",
                          "bf16:fp32_ends_low_core", "bf16:attention_high", "bf16:first_last_k_high"}))
      << "delayed is fp8, under another name";
}

TEST(Recommendation, AConfigurationWithOtherBlocksThanTheMeasuredPatternIsNotTakenForIt) {
  const std::string layers = "model.layers=5", pattern = "precision.pattern=first_last_k_high";
  const Json all = {measured("fp32", {"precision.compute=fp32", layers}, "baseline"),
                    measured("bf16:first_last_k_high", {pattern, layers}, "equal")};
  const Config config = wanted_config({layers, pattern, "precision.pattern_blocks=2"});
  Names configured;
  for (const Candidate& one :
       candidates_of(config, read_measurement(written("blocks.json", prepared_comparison(all).dump()), config))) {
    if (one.is_configured) configured.push_back(one.name);
  }
  EXPECT_EQ(configured, Names{"as configured"});
}

// ---- Report.

TEST(RecommendationReport, BeginsWithTheVerdictAndSaysWhatIsNotKnown) {
  const RecommendationReport report = report_recommendations("wanted.yaml", wanted_config(), measurement_of_all(),
                                                             {prepared_advice({{"fp32", 100},
                                                                               {"bf16", 50},
                                                                               {"delayed", 40},
                                                                               {"current", 38},
                                                                               {"block", 25},
                                                                               {"mxfp8", 51, Support::kEmulated}})});
  const std::string text = to_text(report).text(), words = std::regex_replace(text, std::regex("\\s+"), " ");
  for (const std::string part :
       {"a device: bf16, at least 50 ms a step; equal to fp32 faster, but inconclusive: delayed (1.25 x bf16): too few "
        "seeds to tell: if the precisions do not differ, about 14 are needed faster, but worse: current (1.32 x bf16) "
        "faster, but not measured: block (2.00 x bf16) emulated here, without a gain: mxfp8",
        "Damage was measured on gpt: 2 layers, width 128, context 128 (0.45 million parameters), 400 steps of 1024 "
        "tokens, 6 seeds, against fp32, equal within 0.008 nats. Equal means equal on average: 6 seeds cannot exclude "
        "that up to 39 % of runs are bad (95 % confidence). If one run in 20 is bad, 74 % of such comparisons show "
        "none. This run has 4000 steps: slow damage may not have shown. This model has 2.50 million: damage may not "
        "extrapolate to it. Not as here: model.heads, model.layers, model.width, train.steps.",
        "* 50", "e 51", "bf16 in production, with fp32 above it"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("a device: bf16"), 0u) << "the verdict is first";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

// A baseline whose runs failed is not worse than itself, and nothing is faster than what was not chosen.
TEST(RecommendationReport, SaysWhoseRunsFailed) {
  const std::string why = "the precision and the baseline fail with every seed: no losses to compare";
  Json all = {measured("fp32", kFp32, "baseline"), measured("bf16", kBf16, "inconclusive", why),
              measured("fp16", kFp16, "inconclusive", why)};
  for (Json& one : all) {
    one["summary"].update({{"succeeded", 0}, {"failure", "stopped"}, {"loss_difference", nullptr}});
  }
  const auto report = [&] {
    const Config config = wanted_config();
    const Measurement measurement = read_measurement(written("failed.json", prepared_comparison(all).dump()), config);
    const Advice advice = prepared_advice({{"fp16", 40}, {"bf16", 50}, {"block", 60}, {"fp32", 100}});
    return to_text(report_recommendations("wanted.yaml", config, measurement, {advice})).text();
  };
  const std::string text = report();
  EXPECT_NE(text.find("\n  their runs failed: fp16, bf16, fp32\n  not measured: block\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("worse"), std::string::npos) << text;
  EXPECT_EQ(text.find("Equal means"), std::string::npos) << text;
  all[0] = measured("fp32", kFp32, "baseline");
  all[1] = measured("bf16", kBf16, "equal");
  all[2]["summary"]["verdict"] = "worse";
  const std::string chosen = report();
  EXPECT_NE(chosen.find("\n  faster, but their runs failed: fp16 (1.25 x bf16)\n"), std::string::npos) << chosen;
  EXPECT_NE(chosen.find("Equal means"), std::string::npos) << chosen;
}

TEST(RecommendationReport, NamesTheOutlierOfTheChosenPrecision) {
  Json bf16 = measured("bf16", kBf16, "equal");
  bf16["summary"]["outlier"] = {{"seed", 3}, {"text", "seed 3 stands apart"}};
  const Json all = {measured("fp32", kFp32, "baseline"), bf16};
  const Config config = wanted_config();
  const RecommendationReport report = report_recommendations(
      "wanted.yaml", config, read_measurement(written("outlier.json", prepared_comparison(all).dump()), config),
      {prepared_advice({{"fp32", 100}, {"bf16", 50}})});
  const std::string text = to_text(report).text();
  EXPECT_EQ(text.find("a device: bf16, at least 50 ms a step; equal to fp32; seed 3 stands apart"), 0u) << text;
}

TEST(RecommendationReport, AConfigurationIsForOneDeviceWithARecommendation) {
  const auto error_for = [](std::vector<Advice> devices) {
    const RecommendationReport report =
        report_recommendations("wanted.yaml", wanted_config(), measurement_of_all(), std::move(devices));
    return error_of([&] { to_production_yaml(report); });
  };
  const Advice good = prepared_advice({{"fp32", 100}, {"bf16", 50}}), bad = prepared_advice({{"delayed", 40}});
  EXPECT_FALSE(report_recommendations("wanted.yaml", wanted_config(), measurement_of_all(), {good, good}).guide);
  EXPECT_EQ(error_for({good}), "");
  EXPECT_NE(error_for({bad}).find("there is nothing to write: a device: nothing to recommend"), std::string::npos);
}

}  // namespace
}  // namespace mantissa
