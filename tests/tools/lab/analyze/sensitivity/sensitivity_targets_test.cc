// Losses that tell nothing: of batches whose tokens are all masked, and changes below the rounding of a loss.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/local/local_communicator.h"
#include "tests/core/data/shard_file.h"
#include "tests/program/program.h"
#include "tests/testing/error_of.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa::testing {
namespace {

// Each sequence is a document, and one document in four has targets.
TEST(SensitivityTargets, LeavesOutBatchesWithoutATarget) {
  const SmallRun run("sensitivity_targets");
  TokenShardWriter writer(256, "toy");
  for (int i = 0; i < 16; ++i) writer.add(std::vector<int32_t>(33, i), std::vector<uint8_t>(33, i % 4 == 0));
  write_file(run.folder() + "/few.safetensors", shard_text(writer));
  const Config config = in_exact_precision(
      load_config(run.config_path(), {"data.train=" + run.folder() + "/few.safetensors", "data.format=tokens",
                                      "data.packing=documents", "train.global_batch=2", "train.micro_batch=1"}));
  LocalGroup group(1);
  Session session(config, group.rank(0));
  SensitivityRequest asked{.target = "a small run", .formats = {"bf16"}, .layers = "blocks.0.mlp.up"};
  asked.batches = 8;
  asked.probes = 2;
  const SensitivityAnalysis analysis = analyze_sensitivity(asked, session);
  LoweredPasses passes(session);
  const std::vector<int64_t> steps = passes.steps_with_targets(8);
  ASSERT_GE(steps.size(), 2u) << "four sequences of sixteen, two a step";
  ASSERT_LE(steps.size(), 4u);
  double sum = 0.0;
  for (const int64_t step : steps) {
    passes.load(step);
    sum += passes.run(nullptr, 1.0f);
  }
  EXPECT_NEAR(analysis.loss.mean, sum / static_cast<double>(steps.size()), 1e-6);
  EXPECT_EQ(analysis.batches, std::ssize(steps));
  const nlohmann::json figures = to_json(analysis);
  EXPECT_EQ(figures.at("batches"), steps.size());
  EXPECT_EQ(figures.at("batches_without_target"), 8 - steps.size());
  EXPECT_EQ(figures.at("verdict").back(), fmt::format("Left out: {} batches without a target.", 8 - steps.size()));
  asked.batches = 1;
  while (std::ranges::count(steps, session.next_step) > 0) ++session.next_step;
  EXPECT_NE(error_of([&] {
              analyze_sensitivity(asked, session);
            }).find(fmt::format("no token of the 1 batch from step {} on is a target", session.next_step + 1)),
            std::string::npos);
}

// An update by 1e-20 is lost in fp32, so that lowered gradients change no loss in any batch.
TEST(SensitivityTargets, AnIntervalIsAtLeastTheRoundingOfALoss) {
  const SmallRun run("sensitivity_rounding");
  const Config config =
      in_exact_precision(load_config(run.config_path(), {"optimizer.lr=1e-20", "optimizer.weight_decay=0"}));
  LocalGroup group(1);
  Session session(config, group.rank(0));
  SensitivityRequest asked{.target = "a small run", .formats = {"current"}, .layers = "blocks.0.mlp.up"};
  asked.batches = 2;
  asked.probes = 0;
  const SensitivityAnalysis analysis = analyze_sensitivity(asked, session);
  const double rounding = 2.0 * std::numeric_limits<float>::epsilon() * analysis.loss.mean;
  ASSERT_EQ(analysis.decisions.size(), 3u);
  for (const DecisionScores& one : analysis.decisions) {
    EXPECT_GE(one.loss.half_width, rounding) << name(one.decision);
    if (lowers_forward_product(one.decision)) continue;
    EXPECT_EQ(one.loss.mean, 0.0) << name(one.decision);
    EXPECT_EQ(one.loss.half_width, rounding) << name(one.decision);
    EXPECT_EQ(one.update_loss.half_width, rounding) << name(one.decision);
  }
  asked.batches = 1;
  EXPECT_TRUE(std::isnan(analyze_sensitivity(asked, session).decisions[0].loss.half_width)) << "of one batch";
}

}  // namespace
}  // namespace mantissa::testing
