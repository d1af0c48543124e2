// Comparisons for `advise --measured`: figures taken from them, and errors.
#include <gtest/gtest.h>

#include "tests/testing/error_of.h"
#include "tests/tools/lab/advise/prepared_comparison.h"
#include "tools/lab/advise/recommendation.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::kBf16;
using testing::kFp16;
using testing::kFp32;
using testing::measured;
using testing::measurement_of_all;
using testing::prepared_comparison;
using testing::recipe;
using testing::wanted_config;
using testing::written;

// A byte model of L layers and width W: 256 W + 128 W of embeddings, 12 W² + 13 W in a block, and the last norm's 2 W.
TEST(Measurement, SaysWhatWasMeasured) {
  const Measurement found = measurement_of_all();
  EXPECT_EQ(found.parameters, 384 * 128 + 2 * (12 * 128 * 128 + 13 * 128) + 2 * 128);
  EXPECT_EQ(found.tokens_per_step, 1024);
  EXPECT_EQ(found.differences, (std::vector<std::string>{"model.heads: 2 -> 4", "model.layers: 2 -> 3",
                                                         "model.width: 128 -> 256", "train.steps: 400 -> 4000"}));
  EXPECT_EQ(found.find("fp32")->damage, Damage::kNone) << "the baseline";
  EXPECT_EQ(found.find("fp16")->damage, Damage::kNone) << "better";
  EXPECT_EQ(found.find("delayed")->damage, Damage::kUnclear);
  EXPECT_EQ(found.find("current")->damage, Damage::kSome);
  EXPECT_EQ(found.find("nvfp4")->damage, Damage::kSome);
  EXPECT_EQ(found.find("nvfp4")->why, "2 of 6 runs failed: stopped after 3 faults");
  EXPECT_EQ(found.find("block"), nullptr);
}

TEST(Measurement, LeavesOutWhatWasNotTrainedOrHasNoOneSpeed) {
  Json refused = measured("block", recipe("block"), "equal");
  refused.erase("summary");
  const Json adaptive = measured("configured", {"precision.schedule=[{after_step: 5, compute: fp32}]"}, "equal");
  const Json all = {measured("fp32", kFp32, "baseline"), refused, adaptive};
  const Measurement found =
      read_measurement(written("left_out.json", prepared_comparison(all).dump()), wanted_config());
  ASSERT_EQ(found.precisions.size(), 1u);
  EXPECT_EQ(found.precisions[0].name, "fp32");
}

TEST(Measurement, ABaselineThatFailedIsNotRecommended) {
  Json fp32 = measured("fp32", kFp32, "baseline");
  fp32["summary"]["succeeded"] = fp32["summary"]["loss_difference"]["pairs"] = 5;
  Json bf16 = measured("bf16", kBf16, "better");
  bf16["summary"]["loss_difference"] = fp32["summary"]["loss_difference"];  // told by the failed run
  const Measurement found =
      read_measurement(written("failed.json", prepared_comparison({fp32, bf16}).dump()), wanted_config());
  EXPECT_EQ(found.find("fp32")->damage, Damage::kSome);
  EXPECT_EQ(found.find("bf16")->damage, Damage::kNone);
}

TEST(Measurement, TrustsOnlyVerdictsItKnowsBesideATrainedBaseline) {
  const Json odd = {measured("fp32", kFp32, "baseline"), measured("bf16", kBf16, "a verdict to come")};
  const std::string path = written("odd.json", prepared_comparison(odd).dump());
  const std::string unknown = error_of([&] { read_measurement(path, wanted_config()); });
  EXPECT_NE(unknown.find("odd.json: bf16: expected a verdict of baseline, equal, better, worse, inconclusive, got 'a "),
            std::string::npos)
      << unknown;
  Json refused = measured("fp32", kFp32, "baseline");
  refused.erase("summary");
  EXPECT_NE(error_of([&] {
              read_measurement(
                  written("none.json", prepared_comparison({refused, measured("bf16", kBf16, "equal")}).dump()),
                  wanted_config());
            }).find("its baseline fp32 was not trained"),
            std::string::npos);
  Json by_fp16 = prepared_comparison({measured("fp16", kFp16, "baseline"), measured("fp32", kFp32, "better")});
  by_fp16["baseline"] = "fp16";
  EXPECT_NE(error_of([&] {
              read_measurement(written("fp16.json", by_fp16.dump()), wanted_config());
            }).find("got fp16 beside fp32: compare with --baseline fp32"),
            std::string::npos);
}

TEST(Measurement, RefusesFiguresThatContradictEachOther) {
  const auto error_with = [](const std::string& verdict, const Json& changes = Json::object(),
                             const std::string& margin = "") {
    Json bf16 = measured("bf16", kBf16, verdict);
    for (const auto& [place, value] : changes.items()) bf16[Json::json_pointer(place)] = value;
    Json all = prepared_comparison({measured("fp32", kFp32, "baseline"), bf16});
    all["setting"]["margin_text"] = margin;
    const std::string path = written("contradiction.json", all.dump());
    const std::string error = error_of([&] { read_measurement(path, wanted_config()); });
    EXPECT_TRUE(error.empty() || error.starts_with("--measured " + path + ": bf16: expected ")) << error;
    return error;
  };
  const auto lying = [](double low, double mean, double high) {
    return Json{{"/summary/loss_difference/mean", mean},
                {"/summary/loss_difference/interval", {{"low", low}, {"high", high}}}};
  };
  const auto expect_part = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  for (const char* const verdict : {"equal", "better", "worse", "inconclusive"}) EXPECT_EQ(error_with(verdict), "");
  expect_part(error_with("equal", {{"/runs", Json::array()}}), "as many runs as are listed, 0, no more that succeeded");
  expect_part(error_with("equal", {{"/summary/succeeded", 7}}), "got 6, 7 and 6");
  expect_part(error_with("equal", lying(0.004, 0.001, -0.002)), "low <= mean <= high, got 0.004, 0.001 and -0.002");
  expect_part(error_with("equal", lying(0.019, 0.02, 0.021)),
              "loss_difference of 0.02 (0.019 to 0.021) and the margin of 0.008, got 'equal'");
  EXPECT_NE(error_with("better", lying(-0.002, -0.001, 0.0)), "");
  EXPECT_NE(error_with("worse", lying(-0.002, 0.001, 0.004)), "");
  EXPECT_NE(error_with("equal", {{"/summary/loss_difference/interval", nullptr}}), "") << "of one pair";
  // With a share of what each run learns, margins differ from pair to pair.
  EXPECT_EQ(error_with("equal", lying(-0.001, 0.004, 0.009), "0.25 % of what the baseline learns"), "");
  EXPECT_NE(error_with("equal", lying(-0.001, 0.004, 0.009), "0.008 nats"), "");
}

// Figures of other moment formats do not apply to the configuration.
TEST(Measurement, LeavesOutPlansThatLowerMoreThanThePrecision) {
  const Json all = {measured("plan", {"precision.compute=bf16", "optimizer.first_moment=8bit"}, "equal"),
                    measured("fp32", kFp32, "baseline"), measured("fp16", kFp16, "equal"),
                    measured("rules", {"precision.rules=[{match: head, format: fp32}]"}, "equal")};
  const auto found = [&](const std::vector<std::string>& settings) {
    const Measurement measurement =
        read_measurement(written("plans.json", prepared_comparison(all).dump()), wanted_config(settings));
    std::vector<std::string> names;
    for (const MeasuredPrecision& one : measurement.precisions) names.push_back(one.name);
    return names;
  };
  EXPECT_EQ(found({}), (std::vector<std::string>{"fp32", "fp16", "rules"}));
  EXPECT_EQ(found({"optimizer.lr=0.25"}), (std::vector<std::string>{"fp32", "fp16", "rules"})) << "differs for all";
}

TEST(Measurement, RefusesOtherFilesAndOtherTasks) {
  const auto error = [](const std::string& path, const Config& config) {
    return error_of([&] { read_measurement(path, config); });
  };
  const auto expect_part = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string good =
      written("good.json", prepared_comparison(Json::array({measured("fp32", kFp32, "baseline")})).dump());
  expect_part(error("/no/such.json", wanted_config()), "/no/such.json: cannot be opened");
  for (const std::string text : {"precision: bf16", "[1, 2]", R"({"model": "a", "verdict": "b"})"}) {
    expect_part(error(written("other.json", text), wanted_config()),
                "other.json: expected a file that `mantissa compare CONFIG` wrote with --json");
  }
  Json part = prepared_comparison(Json::array({measured("fp32", kFp32, "baseline")}));
  const Json whole = part["precisions"][0];
  for (const std::string key : {"/summary/succeeded", "/summary/loss_difference", "/summary/loss_difference/interval",
                                "/summary/fault_share", "/summary/smallest_scale", "/runs", "/runs/0/failure",
                                "/runs/0/steps", "/runs/0/steps/loss", "/runs/0/steps/result"}) {
    SCOPED_TRACE(key);
    const Json::json_pointer place(key);
    Json& one = part["precisions"][0] = whole;
    one[place.parent_pointer()].erase(place.back());
    expect_part(error(written("part.json", part.dump()), wanted_config()), "part.json: expected all figures that");
  }
  part["precisions"][0] = whole;
  part["precisions"][0]["runs"][0]["steps"]["grad_norm"].erase(999);
  expect_part(
      error(written("part.json", part.dump()), wanted_config()),
      "part.json: expected a loss, grad_norm and result for each step of a run of fp32, got 1000, 999 and 1000");
  for (const char* const key : {"model", "steps", "seeds", "level", "margin"}) {
    Json without = prepared_comparison(Json::array({measured("fp32", kFp32, "baseline")}));
    without["setting"].erase(key);
    expect_part(error(written("without.json", without.dump()), wanted_config()), "expected all figures that");
  }
  expect_part(error(good, wanted_config({"model.context=256"})),
              "expected a comparison of a gpt with model.context=256, as the configuration has it, got a gpt with 128");
  expect_part(error(good, wanted_config({"model.name=encoder"})), "expected a comparison of a encoder");
  EXPECT_EQ(error(good, wanted_config()), "");
}

}  // namespace
}  // namespace mantissa
