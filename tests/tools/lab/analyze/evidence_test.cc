// Evidence of several verbs, on prepared figures.
#include "tools/lab/analyze/analyze_verbs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "tests/testing/damaged.h"
#include "tests/testing/error_of.h"
#include "tests/tools/config/minimal.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/lab/experiment/candidates.h"

namespace mantissa::testing {
namespace {

const Json kSettings = {{"model.layers", "2"}, {"model.width", "128"}, {"optimizer.lr", "0.002"}};

std::string yaml_in(const std::string& precision, const std::vector<std::string>& settings = {}) {
  return to_yaml(chosen_candidates(minimal_config(settings), {precision}).front().config);
}

struct Compared {
  std::string name, verdict;
  double difference = 0.0, half_width = 0.0;
  std::string why{};
};

Json compared(std::vector<Compared> precisions) {
  precisions.insert(precisions.begin(), {.name = "fp32", .verdict = "baseline"});
  Json figures = {
      {"verb", "compare"},
      {"training", kSettings},
      {"title", "model.yaml"},
      {"baseline", "fp32"},
      {"setting", {{"seeds", {1, 2, 3, 4, 5}}, {"steps", 400}, {"margin", 0.9963}, {"margin_text", "2 % of it"}}},
      {"precisions", Json::array()}};
  for (const Compared& one : precisions) {
    const Json interval = {{"low", one.difference - one.half_width}, {"high", one.difference + one.half_width}},
               loss = {{"pairs", 5}, {"mean", one.difference}, {"stddev", 0.0}, {"interval", interval}};
    figures["precisions"].push_back(
        {{"name", one.name},
         {"config", yaml_in(one.name)},
         {"runs", {1, 2, 3, 4, 5}},
         {"summary",
          {{"verdict", one.verdict}, {"why", one.why}, {"runs", 5}, {"succeeded", 5}, {"loss_difference", loss}}}});
  }
  return figures;
}

struct Lowered {
  std::string name, format;  // the last word of the name may be a product
  Json loss, half_width;
  std::string band{};
  bool throughout = true;
};

// `untried`: products of each format that were left out.
Json lowered(const std::vector<Lowered>& decisions, int untried = 0) {
  Json figures = {{"verb", "analyze sensitivity"},
                  {"training", kSettings},
                  {"target", "model.yaml"},
                  {"batches", 5},
                  {"decisions", Json::array()}};
  for (const Lowered& one : decisions) {
    Json& products = figures["lowered_decisions"][one.format];
    if (products.is_null()) products = untried;
    products = products.get<int>() + (one.throughout ? 1 : 0);
    const std::string last = one.name.substr(one.name.rfind(' ') + 1);
    const bool is_product = last == "fprop" || last == "dgrad" || last == "wgrad";
    figures["decisions"].push_back({{"name", one.name + " " + one.format},
                                    {"product", is_product ? Json(last) : Json()},
                                    {"format", one.format},
                                    {"is_lowered", one.throughout},
                                    {"loss", {{"mean", one.loss}, {"half_width", one.half_width}}},
                                    {"band", one.band.empty() ? Json() : Json(one.band)}});
  }
  return figures;
}

Json counted(const std::string& precision, const std::string& level) {
  return {{"verb", "analyze model"},
          {"training", kSettings},
          {"title", "model.yaml"},
          {"setting", {{"precision", precision}, {"config", yaml_in(precision)}}},
          {"verdict", {{"level", level}}}};
}

const Json& row(const Json& figures, const std::string& precision) {
  const Json& rows = figures.at("precisions");
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Json& one) { return one["precision"] == precision; });
  if (found == rows.end()) throw std::runtime_error("no row of " + precision);
  return *found;
}

void expect_said(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// The case that made three verbs contradict each other.
TEST(Evidence, OfTrainingCountsMoreThanThatOfOneStepAndCounts) {
  const Json figures =
      weigh_evidence({{"counts.json", counted("nvfp4", "good")},
                      {"step.json", lowered({{"head fprop", "nvfp4", 0.0054, 0.0024, "fp32"},
                                             {"blocks.0.mlp.up fprop", "nvfp4", 0.0001, 0.0002, "fp32"},
                                             {"head fprop", "current", 0.00002, 0.00001, "low"}})},
                      {"training.json", compared({{"fp4", "equal", 0.0021, 0.0019},
                                                  {"current", "worse", 0.02, 0.012},
                                                  {"bf16", "equal", 0.0, 0.0001}})}});
  EXPECT_EQ(row(figures, "nvfp4").at("answer"), "no harm");
  EXPECT_EQ(row(figures, "nvfp4").at("by"), "training");
  EXPECT_EQ(row(figures, "current").at("answer"), "harm");
  const std::string text = evidence_text(figures), flat = unwrapped(text);
  EXPECT_TRUE(text.starts_with("As good as fp32 in training: nvfp4, bf16. Worse than fp32 in training: current.\n"))
      << text;
  expect_said(flat,
              "nvfp4: training says no harm (equal +0.0021 ±0.0019), one step harm (1 of 2 harm; most by head fprop "
              "nvfp4, +0.0054 nats). Training counts: it lowers all products together");
  expect_said(flat,
              "nvfp4: training says no harm (equal +0.0021 ±0.0019), counts are above thresholds (2 of 2 at risk)");
  expect_said(flat, "current: training says harm (worse +0.020 ±0.012), one step no forward harm (0 of 1 harm)");
  EXPECT_EQ(text.find("To know more"), std::string::npos) << text;
  expect_said(flat, "5 seeds, 400 steps, equal within 0.996 nats of fp32 (2 % of it)");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }), 120) << "in characters: " << line;
  }
}

TEST(Evidence, OfOneStepCountsWhereTrainingDoesNotTell) {
  const Json figures =
      weigh_evidence({{"training.json", compared({{"nvfp4", "inconclusive", 0.0076, 0.02, "too few seeds to tell"}})},
                      {"more.json", compared({{"tf32", "equal", 0.0, 0.001}})},
                      {"step.json", lowered({{"head fprop", "nvfp4", 0.0054, 0.0024, "fp32"},
                                             {"head fprop", "mxfp8", 0.0001, 0.0004, "fp32"},
                                             {"head fprop", "block", 0.0009, 0.0004, "low"},
                                             {"head dgrad", "block", 0.0, 0.0, "unrated"},
                                             {"head wgrad", "current", 0.0, 0.0, "unrated"},
                                             {"head fprop", "fp16", nullptr, nullptr, "low"}})}});
  EXPECT_EQ(row(figures, "nvfp4").at("by"), "one_step");
  EXPECT_EQ(row(figures, "nvfp4").at("answer"), "harm");
  EXPECT_EQ(row(figures, "mxfp8").at("answer"), "no forward harm");
  EXPECT_EQ(row(figures, "current").at("answer"), "open") << "one update does not test a backward product";
  EXPECT_EQ(row(figures, "current").at("one_step").at("text"), "0 of 0 harm, 1 untested");
  EXPECT_EQ(row(figures, "block").at("answer"), "open") << "the interval has parts above and below what matters";
  EXPECT_TRUE(row(figures, "block").at("by").is_null());
  EXPECT_EQ(row(figures, "fp16").at("answer"), "harm") << "not finite";
  EXPECT_EQ(row(figures, "block").at("bands").at("text"), "0 of 1 at risk") << "an unrated share tells nothing";
  EXPECT_TRUE(row(figures, "current").at("bands").is_null());
  const std::string text = unwrapped(evidence_text(figures));
  EXPECT_TRUE(text.starts_with(
      "Harmed in one step, training not known: nvfp4, fp16. As good as fp32 in training: tf32. Not "
      "harmed forward in one step, backward and training not known: mxfp8. Harm not known: block, current."))
      << text;
  expect_said(text,
              "mxfp8: one step says no forward harm (0 of 1 harm), counts are above thresholds (1 of 1 at risk). One "
              "step counts: it measures a loss");
  expect_said(text, "fp16: one step says harm (1 of 1 harm; most by head fprop fp16, not finite)");
  expect_said(text, "nvfp4: too few seeds to tell");
  EXPECT_EQ(row(figures, "tf32").at("by"), "training") << "a second file of compare, with the same baseline";
  expect_said(text, "mantissa compare model.yaml --precisions fp32,block,current,fp16,mxfp8 --json FILE");
}

// nvfp4 leaves the head in 16 bits, so damage of nvfp4 in the head does not count.
TEST(Evidence, IsOfProductsThatThePrecisionLowers) {
  const Json figures = weigh_evidence({{"step.json", lowered({{"head fprop", "nvfp4", 0.5, 0.001, "fp32", false},
                                                              {"blocks.0.mlp.up fprop", "nvfp4", 0.0, 0.0002, "low"},
                                                              {"head fprop", "block", 0.5, 0.001, "fp32", false}})}});
  EXPECT_EQ(row(figures, "nvfp4").at("answer"), "no forward harm");
  EXPECT_EQ(row(figures, "nvfp4").at("bands").at("text"), "0 of 1 at risk");
  EXPECT_EQ(figures.at("precisions").size(), 1u) << "nothing of block was tried that it lowers";
}

TEST(Evidence, OfAFewProductsSaysNothingOfTheRest) {
  const Json figures = weigh_evidence({{"step.json", lowered({{"a fprop", "nvfp4", 0.0, 0.0002},
                                                              {"a dgrad", "nvfp4", 0.0, 0.0002},
                                                              {"a wgrad", "nvfp4", 0.0, 0.0002},
                                                              {"a fprop", "fp16", nullptr, nullptr}},
                                                             24)}});
  EXPECT_EQ(row(figures, "nvfp4").at("answer"), "open");
  EXPECT_EQ(row(figures, "nvfp4").at("one_step").at("text"), "3 of 27 products tried");
  EXPECT_EQ(row(figures, "fp16").at("answer"), "harm") << "harm of one is harm of all";
  const std::string text = unwrapped(evidence_text(figures));
  EXPECT_TRUE(text.starts_with("Harm not known: nvfp4. Harmed in one step, training not known: fp16.")) << text;
  expect_said(text, "3 of 27 products tried");
  expect_said(text, "mantissa analyze sensitivity model.yaml --formats nvfp4 --json FILE");
}

TEST(Evidence, OfSmallDifferencesHasDigits) {
  const Json figures = weigh_evidence({{"a.json", compared({{"fp64", "equal", -2.13e-7, 1.4e-7}})}});
  expect_said(unwrapped(evidence_text(figures)), "equal -2.1e-07 ±1.4e-07");
}

std::string answer_of(const std::vector<Lowered>& decisions) {
  return row(weigh_evidence({{"step.json", lowered(decisions)}}), decisions.front().format).at("answer");
}

// One of 27 harmless products rises beyond its interval in every second case, two of them in one of seven, three in
// 3 %, four in 0.5 %.
TEST(Evidence, OfOneStepIsMoreThanChance) {
  for (const int rises : {1, 2, 3, 4}) {
    std::vector<Lowered> decisions;
    for (int i = 0; i < 27; ++i) decisions.push_back({std::to_string(i), "nvfp4", i < rises ? 0.002 : 0.0, 0.0009});
    EXPECT_EQ(answer_of(decisions), rises == 4 ? "harm" : "open") << rises;
  }
}

// The largest of twelve products is told from 0 by an interval 2.12 times as wide: t(1 - 0.025 / 12) / t(0.975), with 4
// degrees of freedom.
TEST(Evidence, OfOneStepIsOfTheLargestRiseAsWell) {
  const auto with_rise = [](double rise, double half_width) {
    std::vector<Lowered> decisions(12, {"a fprop", "nvfp4", 0.0, 0.0002});
    for (size_t i = 0; i < decisions.size(); ++i) decisions[i].name = std::to_string(i) + " fprop";
    decisions[5].loss = rise;
    decisions[5].half_width = half_width;
    return decisions;
  };
  EXPECT_EQ(answer_of(with_rise(0.5, 0.01)), "harm");
  EXPECT_EQ(answer_of(with_rise(0.022, 0.01)), "harm");
  EXPECT_EQ(answer_of(with_rise(0.020, 0.01)), "open") << "one of twelve is seen beyond its interval in 26 %";
  EXPECT_EQ(answer_of(with_rise(0.0009, 0.00001)), "no forward harm") << "known well, and small";
  std::vector<Lowered> noisy = with_rise(0.5, 0.01);
  noisy[7].loss = 0.9;
  noisy[7].half_width = 2.0;
  const Json figures = weigh_evidence({{"step.json", lowered(noisy)}});
  EXPECT_EQ(row(figures, "nvfp4").at("one_step").at("worst"), "5 fprop nvfp4") << "the largest that is known";
}

// In risk_bands.md an update showed no harm in any of 537 backward decisions, so none says nothing.
TEST(Evidence, OfOneStepDoesNotTestBackwardProducts) {
  std::vector<Lowered> decisions;
  for (int i = 0; i < 9; ++i) {
    for (const char* const product : {" fprop", " dgrad", " wgrad"}) {
      decisions.push_back({std::to_string(i) + product, "mxfp8", 0.0, 0.0002});
    }
  }
  const Json figures = weigh_evidence({{"step.json", lowered(decisions)}});
  EXPECT_EQ(row(figures, "mxfp8").at("answer"), "no forward harm");
  EXPECT_EQ(row(figures, "mxfp8").at("one_step").at("text"), "0 of 9 harm, 18 untested");
  EXPECT_EQ(row(figures, "mxfp8").at("one_step").at("untested"), 18);
  const std::string text = unwrapped(evidence_text(figures));
  EXPECT_TRUE(text.starts_with("Not harmed forward in one step, backward and training not known: mxfp8.")) << text;
  expect_said(text, "mantissa compare model.yaml --precisions fp32,mxfp8 --json FILE");
  decisions[1].loss = 0.0015;
  decisions[1].half_width = 0.001;
  EXPECT_EQ(answer_of(decisions), "open") << "a rise that may be chance";
  decisions[1].half_width = 0.0001;
  EXPECT_EQ(answer_of(decisions), "harm");
  EXPECT_TRUE(weigh_evidence({{"training.json", compared({{"mxfp8", "equal", 0.0, 0.001}})},
                              {"step.json", lowered({decisions.front()})}})
                  .at("disagreements")
                  .empty());
}

TEST(Evidence, OfTrainingNamesOutliers) {
  Json figures = compared({{"nvfp4", "equal", 0.0, 0.001}});
  figures["precisions"][1]["summary"]["outlier"] = {{"seed", 3}, {"text", "seed 3 stands apart"}};
  const std::string text = unwrapped(evidence_text(weigh_evidence({{"training.json", figures}})));
  expect_said(text, "Training: nvfp4: seed 3 stands apart");
}

// Counts of both verbs matter, in any order of files. Harm by the baseline in one step does not contradict a training.
TEST(Evidence, OfCountsDoesNotDependOnTheOrder) {
  const EvidenceFile model{"model.json", counted("nvfp4", "good")},
      step{"step.json", lowered({{"head fprop", "nvfp4", 0.0, 0.0, "fp32"}})};
  const std::string text = evidence_text(weigh_evidence({model, step}));
  EXPECT_EQ(text, evidence_text(weigh_evidence({step, model})));
  EXPECT_NE(unwrapped(text).find("below thresholds, 1 of 1 at risk"), std::string::npos) << text;
  const Json figures = weigh_evidence({{"training.json", compared({{"nvfp4", "equal"}})},
                                       {"step.json", lowered({{"head fprop", "fp32", 1.0, 0.1, "fp32"}})}});
  EXPECT_TRUE(figures.at("disagreements").empty());
}

TEST(Evidence, OfCountsAloneTellsNoHarm) {
  const Json figures = weigh_evidence({{"a.json", counted("delayed", "attention")},
                                       {"b.json", counted("bf16", "good")},
                                       {"c.json", counted("current:e5m2", "good")}});
  for (const char* precision : {"delayed", "bf16"}) {
    EXPECT_EQ(row(figures, precision).at("answer"), "open");
    EXPECT_TRUE(row(figures, precision).at("by").is_null());
  }
  const std::string text = unwrapped(evidence_text(figures));
  EXPECT_TRUE(text.starts_with("Harm not known: delayed, bf16, current:e5m2.")) << text;
  // Delayed scaling has no history in one step.
  expect_said(text, "mantissa analyze sensitivity model.yaml --formats bf16,current,current:e5m2 --json FILE");
  expect_said(text, "mantissa compare model.yaml --precisions fp32,bf16,current:e5m2,delayed --json FILE");
}

TEST(Evidence, OfDifferentTrainingsIsRefused) {
  Json other = counted("bf16", "good");
  other["training"]["model.width"] = "64";
  const auto refusal = [](const std::vector<EvidenceFile>& files) { return error_of([&] { weigh_evidence(files); }); };
  EXPECT_EQ(refusal({{"a.json", lowered({})}, {"b.json", other}}),
            "b.json: another model or training than a.json: model.width is 64 here and 128 there");
  Json more = counted("bf16", "good");
  more["training"].erase("optimizer.lr");
  expect_said(refusal({{"a.json", lowered({})}, {"b.json", more}}), "optimizer.lr is absent here and 0.002 there");
  expect_said(
      refusal({{"a.json", compared({{"nvfp4", "equal"}})}, {"b.json", compared({{"fp4", "worse", 0.02, 0.01}})}}),
      "b.json: an earlier file of this verb has nvfp4 as well: give one of the two");
  expect_said(refusal({{"a.json", counted("bf16", "good")}, {"b.json", counted("bf16", "good")}}),
              "b.json: an earlier file of this verb has bf16 as well");
  const Json part = lowered({{"a fprop", "bf16", 0.0, 0.0}}, 1);
  EXPECT_EQ(refusal({{"a.json", part}, {"b.json", part}}),
            "b.json: an earlier file of this verb has bf16 as well: parts are not joined: run analyze sensitivity once "
            "over all layers");
  Json beside_bf16 = compared({{"current", "equal"}});
  beside_bf16["baseline"] = beside_bf16["precisions"][0]["name"] = "bf16";
  expect_said(refusal({{"a.json", compared({{"nvfp4", "equal"}})}, {"b.json", beside_bf16}}),
              "b.json: compares with bf16, and an earlier file with fp32");
  expect_said(refusal({{"a.json", Json::array()}}), "a.json: expected a file that");
  Json damaged = compared({{"nvfp4", "equal"}});
  damaged["precisions"][1]["summary"].erase("verdict");
  expect_said(refusal({{"a.json", damaged}}), "a.json: damaged");
  Json few = lowered({{"a fprop", "nvfp4", 0.0, 0.0002}});
  few["lowered_decisions"]["nvfp4"] = 0;
  EXPECT_EQ(refusal({{"a.json", few}}), "a.json: lowered_decisions: expected the 1 tried ones of nvfp4 or more, got 0");
  EXPECT_EQ(refusal({{"a.json", lowered({{"a fprop", "nvfp4", 0.0, -0.5}})}}),
            "a.json: a fprop nvfp4: expected a half_width of its loss from 0, got -0.5");
  expect_said(refusal({{"a.json", compared({{"nvfp4", "worse", 0.25, 0.5}})}}),
              "a.json: nvfp4: expected a verdict that goes with its loss");
}

TEST(Evidence, OfDamagedFilesIsRefusedByTheirNames) {
  for (const Json& whole :
       {compared({{"nvfp4", "equal"}}), lowered({{"a fprop", "nvfp4", 0.0, 0.0002, "low"}}), counted("bf16", "good")}) {
    testing::for_each_damage(whole, [](const std::string& damage, const Json& damaged) {
      try {
        evidence_text(weigh_evidence({{"damaged.json", damaged}}));
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("damaged.json"), std::string::npos) << damage << ": " << error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << damage << ": " << error.what();
      }
    });
  }
}

// Training beside bf16 does not show what bf16 itself does.
TEST(Evidence, OfOneStepNamesHarmOfABaseline) {
  Json training = compared({{"bf16", "baseline"}, {"current", "equal"}});
  training["precisions"].erase(0);  // fp32
  training["baseline"] = "bf16";
  const Json figures =
      weigh_evidence({{"a.json", training}, {"b.json", lowered({{"head", "bf16", 0.5, 0.01, "low"}})}});
  EXPECT_EQ(row(figures, "bf16").at("by"), "one_step");
  const std::string text = unwrapped(evidence_text(figures));
  expect_said(text, "Harmed in one step, training not known: bf16. As good as bf16 in training: current.");
  expect_said(text, "bf16: one step says harm (1 of 1 harm; most by head bf16, +0.5000 nats), counts are below");
  EXPECT_TRUE(figures.at("missing").empty()) << "it is compared with nothing";
}

// As versions wrote it that took a format twice.
TEST(Evidence, OfOneProductTwiceIsOfOne) {
  const Json figures = weigh_evidence({{"step.json", lowered({{"a fprop", "nvfp4", 0.0, 0.0002, "low"},
                                                              {"a fprop", "nvfp4", 0.0, 0.0002, "low"},
                                                              {"a dgrad", "nvfp4", 0.0, 0.0002, "low"}})}});
  EXPECT_EQ(row(figures, "nvfp4").at("one_step").at("text"), "2 of 3 products tried");
  EXPECT_EQ(row(figures, "nvfp4").at("answer"), "open");
  EXPECT_EQ(row(figures, "nvfp4").at("bands").at("text"), "0 of 2 at risk");
}

TEST(Evidence, OfTwoPrecisionsUnderOneNameIsRefused) {
  const std::vector<std::string> rules = {"precision.rules=[{match: head, format: fp32}]"};
  const auto counted_in = [](const std::string& name, const std::vector<std::string>& settings) {
    Json figures = counted(name, "good");
    figures["setting"]["config"] = to_yaml(minimal_config(settings));
    return figures;
  };
  Json trained = compared({{"configured", "equal"}});
  trained["precisions"][1]["config"] = to_yaml(minimal_config(rules));
  const auto refusal = [&](const Json& figures) {
    return error_of([&] { weigh_evidence({{"a.json", trained}, {"b.json", figures}}); });
  };
  EXPECT_EQ(refusal(counted_in("configured", {"precision.compute=fp16", rules[0]})),
            "b.json: configured is another precision than in a.json: precision.compute: bf16 -> fp16: give files of "
            "one precision");
  EXPECT_NE(refusal(counted_in("configured", {"precision.schedule=[{after_step: 2, compute: fp32}]"})), "");
  EXPECT_NE(refusal(counted_in("configured", {"precision.adaptive.levels=[{compute: fp32}, {compute: bf16}]",
                                              "precision.adaptive.loss_rise=0.1"})),
            "");
  EXPECT_EQ(refusal(counted_in("configured", {rules[0], "precision.fallback.overflows=2", "train.steps=9"})), "");
  expect_said(refusal(counted_in("fp32", {"precision.compute=fp32", "precision.weights=fp32"})),
              "b.json: fp32 is another precision than in a.json: precision.weights: low -> fp32");  // the baseline
  EXPECT_EQ(refusal(counted_in("fp32", {"precision.compute=fp32", "precision.pattern_blocks=3"})), "")
      << "there is no pattern";
  Json beside = compared({{"bf16", "equal"}});
  beside["precisions"][0]["config"] = to_yaml(minimal_config({"precision.compute=fp32", "precision.weights=fp32"}));
  EXPECT_NE(refusal(beside).find("b.json: fp32 is another precision"), std::string::npos) << "two baselines";
  trained["precisions"][1].erase("summary");
  trained["precisions"][1]["refusal"] = "no such layer";
  trained["precisions"][1]["config"] = "what no configuration is";
  EXPECT_EQ(refusal(counted_in("configured", rules)), "") << "it was not trained";
}

}  // namespace
}  // namespace mantissa::testing
