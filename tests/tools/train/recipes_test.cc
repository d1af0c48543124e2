// Training with linear layers that round their operands to 8 and 4 bits, on one and several ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

// Sizes that go into blocks of 128.
const std::vector<std::string> kSizes = {"model.width=128", "model.context=64", "train.steps=30"};

std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

class RecipesOnRanks : public ::testing::TestWithParam<int> {};

// Rounding to 8 bits is noise of some per cent in every product; what these steps learn is many times that.
TEST_P(RecipesOnRanks, LearnWhatBf16Does) {
  const int ranks = GetParam();
  const SmallRun plain("plain_" + std::to_string(ranks));
  plain.train(ranks, kSizes);
  const double begin = plain.losses().at(1), end = plain.losses().at(30);
  ASSERT_LT(end, 0.8 * begin) << "there is something to learn";
  for (const std::string recipe : {"delayed", "current", "block", "mxfp8", "nvfp4"}) {
    const SmallRun rounded(recipe + std::to_string(ranks));
    const Outcome outcome = rounded.train(ranks, with(kSizes, {"precision.recipe=" + recipe}));
    EXPECT_NE(outcome.output.find("8 of 9 linear layers round operands of their products (" + recipe + ")"),
              std::string::npos)
        << outcome.output;
    const double found = rounded.losses().at(30);
    EXPECT_NE(found, end) << recipe << ": something is rounded";
    EXPECT_NEAR(found, end, 0.1 * (begin - end)) << recipe;
  }
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, RecipesOnRanks, ::testing::Values(1, 2));

// Amaxes are those of the global batch: after the calibration and one step on the same weights, whoever read which
// samples, the histories and scales are the same bits.
TEST(Recipes, DelayedScalesDoNotDependOnTheNumberOfRanks) {
  const auto scales_on = [](int ranks) {
    const SmallRun run("scales_" + std::to_string(ranks));
    run.train(ranks, {"precision.recipe=delayed", "precision.delayed.history=4", "train.stop_at_step=1"});
    return run.hashes(1).at("scales.safetensors");
  };
  const std::string one = scales_on(1);
  EXPECT_EQ(scales_on(2), one);
  EXPECT_EQ(scales_on(3), one);
}

// Random words belong to samples: on an fp32 wire two ranks draw what one does.
TEST(Recipes, StochasticRoundingDoesNotDependOnTheNumberOfRanks) {
  const auto first_loss_after = [](int ranks) {
    const SmallRun run("words_" + std::to_string(ranks));
    run.train(ranks,
              {"precision.recipe=nvfp4", "precision.compute=fp32", "comm.wire_dtype=fp32", "train.stop_at_step=2"});
    return run.losses().at(2);
  };
  EXPECT_NEAR(first_loss_after(2), first_loss_after(1), 1e-5);
}

// A step whose gradients overflow is skipped on all ranks, and its amaxes, which are not finite, do not stay.
TEST(Recipes, OverflowDoesNotStayInTheAmaxHistory) {
  SmallRun run("overflow_delayed");
  run.with_yaml("test:\n  activations: [{step: 5, rank: 1, layer: blocks.0.mlp.up, op: linear, value: inf}]\n");
  const Outcome outcome = run.train(2, {"precision.recipe=delayed", "precision.delayed.amax=most_recent"});
  EXPECT_NE(outcome.output.find("step 5 SKIPPED"), std::string::npos) << outcome.output;
  const auto losses = run.losses();
  EXPECT_TRUE(std::isfinite(losses.at(6)));
  EXPECT_LT(losses.at(20), losses.at(4));
}

TEST(Recipes, GenerationNeedsNoAmaxHistory) {
  const SmallRun run("generate_delayed");
  run.train(1, {"precision.recipe=delayed"});
  const Outcome outcome = run_program(0, {"generate", run.run_dir(), "--prompt", "a", "--tokens", "5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

// The memory of rounded weights and scales is predicted.
TEST(Recipes, MemoryIsPredicted) {
  const std::string text = SmallRun("memory_mxfp8").train(2, with(kSizes, {"precision.recipe=mxfp8"})).output;
  for (const char* category : {"activations", "buffers", "total"}) {
    const size_t line = text.find("\n  " + std::string(category), text.find("predicted and measured"));
    ASSERT_NE(line, std::string::npos) << text;
    EXPECT_NE(text.substr(line, text.find('\n', line + 1) - line).find("+0.0 %"), std::string::npos) << text;
  }
}

TEST(Recipes, ConfigPrintsWhatBecomesOfTheLayers) {
  const SmallRun run("config_table");
  const Outcome outcome = run_program(0, {"config", run.config_path(), "precision.recipe=mxfp8", "model.layers=4",
                                          "precision.pattern=first_last_k_high"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* line :
       {"\n# blocks.1-2.mlp.up            linear        bf16    mxfp8:e4m3 x mxfp8:e4m3     mxfp8:e4m3 x "
        "mxfp8:e4m3     mxfp8:e4m3 x mxfp8:e4m3\n",
        "\n# blocks.0.mlp.up              linear        bf16\n",
        "\n# head                         linear        bf16\n",
        "\n# blocks.0-3.attention         attention     bf16\n"}) {
    EXPECT_NE(outcome.output.find(line), std::string::npos) << line << "\nnot in\n" << outcome.output;
  }
}

}  // namespace
}  // namespace mantissa::testing
