// Candidate precisions, and the configuration settings that they replace.
#include "tools/lab/experiment/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/testing/error_of.h"
#include "tests/tools/config/minimal.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::minimal_config;
using testing::TempFolder;

std::vector<std::string> names_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) names.push_back(candidate.name);
  return names;
}

const Candidate& configured(const std::vector<Candidate>& candidates) {
  return *std::find_if(candidates.begin(), candidates.end(), [](const Candidate& one) { return one.is_configured; });
}

TEST(Candidates, AreAllFormatsAndRecipes) {
  const auto candidates = candidates_of(minimal_config());
  std::vector<std::string> all = uniform_precisions();
  for (const char* slow : {"fp64", "bf16x6", "bf16x3"}) std::erase(all, slow);  // only on request
  for (const std::string& name : pattern_names(minimal_config())) all.push_back(name);
  EXPECT_EQ(names_of(candidates), all);
  EXPECT_EQ(uniform_precisions(), (std::vector<std::string>{"fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16",
                                                            "delayed", "current", "block", "mxfp8", "nvfp4"}));
  EXPECT_EQ(names_of(candidates_of(minimal_config(), {"bf16x6", "current:e5m2"})),
            (std::vector<std::string>{"bf16x6", "bf16", "current:e5m2"}));
  EXPECT_EQ(configured(candidates_of(minimal_config({"precision.compute=fp64"}))).name, "fp64");
  EXPECT_EQ(names_of(candidates_of(minimal_config(), {"fp64"})), (std::vector<std::string>{"fp64", "bf16"}));
  EXPECT_EQ(configured(candidates).name, "bf16");
  EXPECT_EQ(configured(candidates_of(minimal_config({"precision.recipe=mxfp8"}))).name, "mxfp8");
}

TEST(Candidates, PatternsAreOverTheConfigurationsOwnPrecision) {
  EXPECT_EQ(pattern_names(minimal_config()),
            (std::vector<std::string>{"bf16:fp32_ends_low_core", "bf16:attention_high", "bf16:first_last_k_high"}));
  EXPECT_EQ(pattern_names(minimal_config({"precision.compute=fp32"})), pattern_names(minimal_config()));
  const Config mx = minimal_config({"precision.recipe=mxfp8"});
  EXPECT_EQ(pattern_names(mx), (std::vector<std::string>{"mxfp8:all_low", "mxfp8:fp32_ends_low_core",
                                                         "mxfp8:attention_high", "mxfp8:first_last_k_high"}));
  const auto candidates = candidates_of(
      minimal_config({"precision.recipe=mxfp8", "precision.pattern=first_last_k_high", "precision.pattern_blocks=2"}));
  EXPECT_EQ(configured(candidates).name, "mxfp8:first_last_k_high");
  EXPECT_EQ(configured(candidates).config.precision.pattern_blocks, 2);
  const Candidate chosen = chosen_candidates(mx, {"fp8:attention_high"}).front();
  EXPECT_EQ(chosen.name, "fp8:attention_high");
  EXPECT_EQ(chosen.config.precision.pattern, PrecisionPattern::kAttentionHigh);
  EXPECT_EQ(chosen.config.precision.recipe->scaling, Scaling::kDelayed);
  for (const char* wrong : {"fp8:none", "fp8:attention", "fp7:attention_high", ":attention_high", "fp8:"}) {
    EXPECT_THROW(chosen_candidates(mx, {wrong}), ConfigError) << wrong;
    EXPECT_THROW(candidates_of(mx, {wrong}), ConfigError) << wrong;
  }
}

TEST(Candidates, AConfigurationOfItsOwnKindComesFirst) {
  const auto candidates =
      candidates_of(minimal_config({"precision.rules=[{match: blocks.0.mlp, format: fp32}]"}), {"fp32"});
  EXPECT_EQ(names_of(candidates), (std::vector<std::string>{"as configured", "fp32"}));
  EXPECT_TRUE(candidates[0].is_configured);
  EXPECT_EQ(candidates[0].config.precision.rules.size(), 1u);
  EXPECT_TRUE(candidates[1].config.precision.rules.empty());
}

TEST(Candidates, WeightsInFp16GetTheMastersThatTheyNeed) {
  const auto candidates = candidates_of(minimal_config({"optimizer.master=kahan", "train.global_batch=16"}));
  for (const Candidate& candidate : candidates) {
    EXPECT_EQ(candidate.config.optimizer.adamw.master,
              candidate.name == "fp16" ? MasterWeights::kF32 : MasterWeights::kKahan)
        << candidate.name;
    EXPECT_EQ(candidate.config.train.global_batch, 16) << "all else stays";
  }
}

TEST(Candidates, Fp64LeavesOutAllThatRounds) {
  const Config config =
      minimal_config({"optimizer.master=kahan", "optimizer.first_moment=8bit",
                      "optimizer.second_moment=bf16_stochastic", "comm.gather=fp8", "precision.recipe=delayed",
                      "precision.fallback.overflows=2", "probe.enabled=true", "comm.wire_dtype=fp16"});
  const Candidate fp64 = candidates_of(config, {"fp64"}).at(0);
  ASSERT_EQ(fp64.name, "fp64");
  validate(fp64.config, {});
  EXPECT_EQ(fp64.config.wire(), DType::kF64);
  EXPECT_EQ(fp64.config.scaler.scaler.mode, ScalerMode::kNone);
}

TEST(Candidates, KeepAllSettingsThatTheyCanTrainWith) {
  const Config config =
      minimal_config({"optimizer.master=none_stochastic", "optimizer.weight_rounding=stochastic", "comm.gather=fp8"});
  for (const WorkingWeights weights : {WorkingWeights::kLow, WorkingWeights::kFp32}) {
    const Config candidate = in_precision(config, {.compute = DType::kF32, .weights = weights});
    EXPECT_EQ(candidate.optimizer.adamw.master, MasterWeights::kNoneStochastic);
    EXPECT_EQ(candidate.optimizer.adamw.weight_rounding, WeightRounding::kStochastic);
    EXPECT_EQ(candidate.comm.gather, WeightGather::kF8);
  }
}

TEST(Candidates, UnknownFormatsAreRefused) {
  EXPECT_EQ(error_of([] {
              candidates_of(minimal_config(), {"bf16", "fp7"});
            }),
            "--formats: expected some of fp64,fp32,tf32,bf16x6,bf16x3,bf16,fp16,delayed,current,block,mxfp8,nvfp4, or "
            "one of these with a "
            "pattern as in mxfp8:attention_high, got 'fp7'");
}

TEST(Candidates, ThoseAskedForKeepTheirOrderAndNames) {
  const Config config = minimal_config({"optimizer.master=kahan"});
  const auto candidates = chosen_candidates(config, {"fp8", "fp32", "configured", "fp4", "fp16"});
  EXPECT_EQ(names_of(candidates), (std::vector<std::string>{"fp8", "fp32", "configured", "fp4", "fp16"}));
  EXPECT_EQ(candidates[0].config.precision.recipe->scaling, Scaling::kDelayed);
  EXPECT_EQ(candidates[4].config.optimizer.adamw.master, MasterWeights::kF32);
  EXPECT_EQ(to_yaml(candidates[2].config), to_yaml(config));
  EXPECT_EQ(candidates[3].config.precision.recipe->scaling, Scaling::kTwoLevel);
  EXPECT_EQ(candidates[1].config.scaler.scaler.mode, ScalerMode::kNone);
  EXPECT_EQ(candidates[4].config.scaler.scaler.mode, ScalerMode::kDynamic) << "fp16 needs a loss scale";
}

TEST(Candidates, APlanIsThePrecisionOfAFile) {
  const TempFolder folder;
  const std::string path = folder.write("plan.yaml",
                                        "train: {steps: 7}\n"
                                        "precision: {recipe: current, rules: [{match: blocks.0.mlp, format: fp32}]}\n");
  const Config config = minimal_config({"precision.compute=fp16", "precision.fallback.overflows=2"});
  const auto candidates = chosen_candidates(config, {"plan=" + path});
  ASSERT_EQ(names_of(candidates), (std::vector<std::string>{"plan"}));
  const Config& plan = candidates[0].config;
  EXPECT_EQ(plan.precision.compute, DType::kBF16) << "nothing stays of the configuration's own precision";
  EXPECT_EQ(plan.precision_fallback.overflows, 0);
  EXPECT_EQ(plan.precision.recipe->scaling, Scaling::kCurrent);
  EXPECT_EQ(plan.precision.rules.size(), 1u);
  EXPECT_EQ(plan.scaler.scaler.mode, ScalerMode::kNone);
  EXPECT_EQ(plan.train.steps, config.train.steps) << "the rest of the file is unchanged";
}

// Formats that `advise` plans besides layers belong to the plan. Nothing else of the file does.
TEST(Candidates, APlanBringsItsFormatsOfStateAndWire) {
  const std::vector<std::string> formats = {"optimizer.first_moment=8bit",   "optimizer.second_moment=bf16_stochastic",
                                            "optimizer.master=kahan",        "comm.wire_dtype=e5m2",
                                            "comm.wire_rounding=stochastic", "comm.error_feedback=true"};
  std::vector<std::string> whole = formats;
  whole.insert(whole.end(), {"train.steps=7", "optimizer.lr=0.5", "precision.rules=[{match: head, format: fp32}]"});
  const TempFolder folder;
  const Config config = minimal_config({"comm.wire_dtype=fp16", "optimizer.second_moment=8bit"});
  const auto plan_in = [&](const std::string& text) {
    return chosen_candidates(config, {"plan=" + folder.write("plan.yaml", text)})[0].config;
  };
  const Config plan = plan_in(to_yaml(minimal_config(whole)));
  std::vector<std::string> expected = formats;
  expected.emplace_back("precision.rules=[{match: head, format: fp32}]");
  EXPECT_EQ(to_yaml(plan), to_yaml(minimal_config(expected))) << "only these differ from the configuration";
  const Config part = plan_in("precision: {compute: fp32}\noptimizer: {first_moment: 8bit}\n");
  EXPECT_EQ(part.optimizer.adamw.first_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(part.optimizer.adamw.second_moment, MomentFormat::kBlockwise8Bit) << "not in the file";
  EXPECT_EQ(part.comm.reducer.wire, DType::kF16) << "not in the file";
}

TEST(Candidates, APrecisionIsNamedAsItIsAskedFor) {
  for (const std::string name : {"fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16", "delayed", "current:e5m2",
                                 "nvfp4", "mxfp8:attention_high", "block:e5m2:first_last_k_high"}) {
    const auto precision = parse_precision(name);
    ASSERT_TRUE(precision) << name;
    EXPECT_EQ(precision_name(*precision), name);
    EXPECT_EQ(requested_name(chosen_candidates(minimal_config(), {name})[0].config), name);
    EXPECT_EQ(without_alias(name), name);
  }
  EXPECT_EQ(without_alias("fp8:attention_high"), "delayed:attention_high");
  EXPECT_EQ(without_alias("plan"), "plan");
  EXPECT_EQ(requested_name(minimal_config({"precision.rules=[{match: head, format: fp32}]"})), "configured");
  EXPECT_EQ(requested_name(minimal_config({"precision.compute=fp16", "precision.recipe=mxfp8"})), "configured");
  EXPECT_EQ(requested_name(minimal_config({"precision.schedule=[{after_step: 2, compute: fp32}]"})), "configured");
}

TEST(Candidates, WhatIsNoPrecisionIsRefusedByTheOptionsName) {
  const auto refusal = [](const std::vector<std::string>& names) {
    return error_of([&] { chosen_candidates(minimal_config(), names); });
  };
  EXPECT_EQ(refusal({"fp7"}),
            "--precisions: expected some of "
            "fp64,fp32,tf32,bf16x6,bf16x3,bf16,fp16,delayed,current,block,mxfp8,nvfp4,fp8,fp4, one of "
            "these with a pattern as in mxfp8:attention_high, configured or NAME=FILE, got 'fp7'");
  EXPECT_EQ(refusal({"bf16", "bf16"}), "--precisions: expected each once, got 'bf16' and again 'bf16'");
  EXPECT_EQ(refusal({"fp32", "delayed", "fp8"}), "--precisions: expected each once, got 'delayed' and again 'fp8'");
  EXPECT_EQ(refusal({"fp4:attention_high", "nvfp4:attention_high"}),
            "--precisions: expected each once, got 'fp4:attention_high' and again 'nvfp4:attention_high'");
  EXPECT_EQ(refusal({"nvfp4:attention_high", "fp4"}), "") << "one of them has no pattern";
  EXPECT_NE(refusal({"=plan.yaml"}).find("expected NAME=FILE"), std::string::npos);
  const TempFolder folder;
  const std::string bf16 = folder.write("bf16.yaml", "precision: {compute: bf16}\n");
  for (const std::string name : {"fp32", "fp8", "mxfp8:attention_high", "current:e5m2", "configured"}) {
    EXPECT_EQ(refusal({name + "=" + bf16}), "--precisions: " + name + "=" + bf16 +
                                                ": expected another name for a file, as in plan=" + bf16 + ", since '" +
                                                name + "' stands for a precision");
  }
  EXPECT_EQ(refusal({"bf16_plan=" + bf16}), "");
  EXPECT_EQ(refusal({"plan=" + bf16, "plan=" + bf16}), "--precisions: expected each once, got 'plan' and again 'plan'");
  EXPECT_NE(
      refusal({"plan=" + folder.write("none.yaml", "train: {steps: 7}\n")}).find("expected a `precision:` section"),
      std::string::npos);
  EXPECT_NE(refusal({"plan=" + folder.write("typo.yaml", "precision: {compte: bf16}\n")}).find("compte"),
            std::string::npos);
}

}  // namespace
}  // namespace mantissa
