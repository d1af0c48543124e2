// Which precisions are compared, and what of the configuration they replace.
#include "tools/advise/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/testing/error_of.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::minimal_config;

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
  EXPECT_EQ(names_of(candidates), candidate_names());
  EXPECT_EQ(candidate_names(), (std::vector<std::string>{"fp32", "tf32", "bf16", "fp16", "delayed", "current", "block",
                                                         "mxfp8", "nvfp4"}));
  EXPECT_EQ(configured(candidates).name, "bf16");
  EXPECT_EQ(configured(candidates_of(minimal_config({"precision.recipe=mxfp8"}))).name, "mxfp8");
}

TEST(Candidates, AConfigurationOfItsOwnKindComesFirst) {
  const auto candidates =
      candidates_of(minimal_config({"precision.layers=[{match: blocks.0.mlp, dtype: fp32}]"}), {"fp32"});
  EXPECT_EQ(names_of(candidates), (std::vector<std::string>{"as configured", "fp32"}));
  EXPECT_TRUE(candidates[0].is_configured);
  EXPECT_EQ(candidates[0].config.precision.layers.size(), 1u);
  EXPECT_TRUE(candidates[1].config.precision.layers.empty());
}

TEST(Candidates, SettingsThatMeanNothingBesideAFormatGo) {
  const auto candidates = candidates_of(minimal_config({"optimizer.master=kahan", "train.global_batch=16"}));
  for (const Candidate& candidate : candidates) {
    const bool is_bf16 = candidate.config.precision.compute == DType::kBF16;
    EXPECT_EQ(candidate.config.optimizer.adamw.master, is_bf16 ? MasterWeights::kKahan : MasterWeights::kF32)
        << candidate.name;
    EXPECT_EQ(candidate.config.train.global_batch, 16) << "all else stays";
  }
}

TEST(Candidates, UnknownFormatsAreRefused) {
  EXPECT_EQ(error_of([] {
              candidates_of(minimal_config(), {"bf16", "fp7"});
            }),
            "--formats: expected some of fp32,tf32,bf16,fp16,delayed,current,block,mxfp8,nvfp4, got 'fp7'");
}

}  // namespace
}  // namespace mantissa
