// Training with linear layers that round their operands to 8 and 4 bits, on single and several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/io/safetensors.h"
#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

// Sizes that go into blocks of 128.
const std::vector<std::string> kSizes = {"model.width=128", "model.context=64", "train.steps=30"};

class RecipesOnRanks : public ::testing::TestWithParam<int> {};

// Rounding to 8 bits is noise of some per cent in every product; these steps learn many times as much.
TEST_P(RecipesOnRanks, LearnWhatBf16Does) {
  const int ranks = GetParam();
  const ThreadedRun plain("plain_" + std::to_string(ranks));
  plain.train(ranks, kSizes);
  const double begin = plain.losses().at(1), end = plain.losses().at(30);
  ASSERT_LT(end, 0.8 * begin) << "there is something to learn";
  for (const std::string recipe : {"delayed", "current", "block", "mxfp8", "nvfp4"}) {
    const ThreadedRun rounded(recipe + std::to_string(ranks));
    const Outcome outcome = rounded.train(ranks, with(kSizes, {"precision.recipe=" + recipe}));
    EXPECT_NE(outcome.output.find("8 of 9 linear layers round operands of their products; " + recipe + ": emulated ("),
              std::string::npos)
        << outcome.output;
    const double found = rounded.losses().at(30);
    EXPECT_NE(found, end) << recipe << ": something is rounded";
    EXPECT_NEAR(found, end, 0.1 * (begin - end)) << recipe;
  }
}

// One rank rounds as two do: see DelayedScalesDoNotDependOnTheNumberOfRanks and its neighbour.
INSTANTIATE_TEST_SUITE_P(Two, RecipesOnRanks, ::testing::Values(2));
INSTANTIATE_TEST_SUITE_P(DISABLED_One, RecipesOnRanks, ::testing::Values(1));

// Amaxes cover the global batch. After the calibration and a step on the same weights, histories and scales are the
// same bits, whoever read which samples.
TEST(Recipes, DelayedScalesDoNotDependOnTheNumberOfRanks) {
  const auto scales_on = [](int ranks) {
    const ThreadedRun run("scales_" + std::to_string(ranks));
    run.train(ranks, {"precision.recipe=delayed", "precision.delayed.history=4", "train.stop_at_step=1"});
    return run.hashes(1).at("scales.safetensors");
  };
  const std::string one = scales_on(1);
  EXPECT_EQ(scales_on(2), one);
  EXPECT_EQ(scales_on(3), one);
}

// Random words belong to samples: on an fp32 wire two ranks draw the same as one rank.
TEST(Recipes, StochasticRoundingDoesNotDependOnTheNumberOfRanks) {
  const auto first_loss_after = [](int ranks) {
    const ThreadedRun run("words_" + std::to_string(ranks));
    run.train(ranks,
              {"precision.recipe=nvfp4", "precision.compute=fp32", "comm.wire_dtype=fp32", "train.stop_at_step=2"});
    return run.losses().at(2);
  };
  EXPECT_NEAR(first_loss_after(2), first_loss_after(1), 1e-5);
}

// The entries of all tensors' histories: how many there are, and how many of them are 0.
struct Entries {
  size_t entries = 0, empty = 0;
};

std::map<std::string, Entries> histories_of(const SmallRun& run, int64_t step) {
  const SafetensorsReader file(run.checkpoint_folder(step) + "/scales.safetensors");
  std::map<std::string, Entries> found;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.name.ends_with("/amaxes")) continue;
    std::vector<int32_t> amaxes(entry.size_bytes() / sizeof(int32_t));
    std::memcpy(amaxes.data(), file.bytes(entry).data(), entry.size_bytes());
    found[entry.name] = {amaxes.size(), static_cast<size_t>(std::count(amaxes.begin(), amaxes.end(), 0))};
  }
  return found;
}

constexpr const char* kBehindTheFault = "blocks.1.mlp.up.weight/activation/e4m3/amaxes";

// Its amaxes, which are not finite, do not count. Amaxes of its examination do not enter the next step.
TEST(Recipes, AFaultTakesOneEntryOfTheAmaxHistory) {
  ThreadedRun run("fault_delayed");
  run.with_yaml("test:\n  activations: [{step: 5, rank: 1, layer: blocks.0.mlp.up, op: linear, value: inf}]\n");
  const Outcome outcome = run.train(2, {"precision.recipe=delayed", "train.stop_at_step=8"});
  EXPECT_NE(outcome.output.find("step 5 SKIPPED"), std::string::npos) << outcome.output;
  const Entries behind = histories_of(run, 8).at(kBehindTheFault);
  EXPECT_EQ(behind.entries, 9u) << "a calibration and 8 steps";
  EXPECT_EQ(behind.empty, 1u);
}

// Without an amax to start from the calibration is repeated for the next step.
TEST(Recipes, CalibrationIsRepeatedUntilItIsFinite) {
  ThreadedRun run("fault_at_first");
  run.with_yaml("test:\n  activations: [{step: 1, rank: 0, layer: blocks.0.mlp.up, op: linear, value: inf}]\n");
  run.train(1, {"precision.recipe=delayed", "train.stop_at_step=4"});
  const Entries behind = histories_of(run, 4).at(kBehindTheFault);
  EXPECT_EQ(behind.entries, 6u) << "two calibrations and 4 steps";
  EXPECT_EQ(behind.empty, 2u) << "the first calibration and the first step";
}

// A calibration takes the memory of any other pass.
TEST(Recipes, CalibrationFitsWhereverAStepDoes) {
  const std::vector<std::string> small = {"precision.recipe=delayed", "train.micro_batch=1", "train.steps=6"};
  ThreadedRun("calibrate_fp32").train(1, with(small, {"precision.compute=fp32", "model.width=128"}));
  ThreadedRun("calibrate_fp16").train(1, with(small, {"precision.compute=fp16", "model.width=128"}));
  ThreadedRun("calibrate_full").train(2, with(small, {"train.recompute=full", "model.activation=swiglu"}));
}

// Ranks that share a copy of the weights on their node send no weights: comm.gather changes nothing, and the log says
// so. The same holds for a single rank.
TEST(Recipes, NothingIsGatheredAsCodesWhereWeightsAreInCommon) {
  const std::vector<std::string> settings = {"precision.recipe=delayed", "train.stop_at_step=3"};
  const ThreadedRun working("common_working", Ranks::kProcesses), coded("common_coded", Ranks::kProcesses);
  working.train(2, settings);
  const Outcome outcome = coded.train(2, with(settings, {"comm.gather=fp8"}));
  EXPECT_NE(outcome.output.find("comm.gather = fp8 changes nothing here: the ranks share one copy of the weights"),
            std::string::npos)
      << outcome.output;
  EXPECT_EQ(coded.hashes(3), working.hashes(3));
  const ThreadedRun alone("common_alone");
  const Outcome one_rank = alone.train(1, with(settings, {"comm.gather=fp8"}));
  EXPECT_NE(one_rank.output.find("comm.gather=fp8) has no effect: there is one rank"), std::string::npos)
      << one_rank.output;
}

TEST(Recipes, GenerationNeedsNoAmaxHistory) {
  const ThreadedRun run("generate_delayed");
  run.train(1, {"precision.recipe=delayed"});
  const Outcome outcome = run_verb({"generate", run.run_dir(), "--prompt", "a", "--tokens", "5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

// The memory of rounded weights and scales is predicted.
TEST(Recipes, MemoryIsPredicted) {
  const std::vector<std::string> precisions[] = {
      {"precision.recipe=mxfp8"},
      {"precision.recipe=delayed"},
      {"precision.compute=fp32", "precision.fp32_products=tf32"},
      {"precision.compute=fp32", "precision.fp32_products=bf16x3"},
      {"precision.rules=[{match: \"blocks.*.mlp\", format: fp32}, {match: \"blocks.*.mlp\", format: bf16x6}]"}};
  for (const auto& precision : precisions) {
    const ThreadedRun run("memory", precision[0] == "precision.recipe=delayed" ? Ranks::kProcesses : Ranks::kThreads);
    run.train(2, with(with(kSizes, precision), {"train.steps=6"}));  // the peak is there from the first steps on
    expect_predicted_memory(run, {"activations", "buffers", "total"});
  }
}

TEST(Recipes, ConfigPrintsWhatBecomesOfTheLayers) {
  const SmallRun run("config_table");
  const Outcome outcome = run_verb(
      {"config", run.config_path(), "precision.recipe=mxfp8", "model.layers=4", "precision.pattern=first_last_k_high"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* line :
       {"\n# blocks.1-2.mlp.up            linear        bf16 mxfp8: e4m3 x e4m3     mxfp8: e4m3 x e4m3     "
        "mxfp8: e4m3 x e4m3\n",
        "\n# blocks.0.mlp.up              linear        bf16\n",
        "\n# head                         linear        bf16\n",
        "\n# blocks.0-3.attention         attention     bf16\n"}) {
    EXPECT_NE(outcome.output.find(line), std::string::npos) << line << "\nnot in\n" << outcome.output;
  }
}

TEST(Recipes, ConfigPrintsHowFp32ProductsAreMade) {
  const SmallRun run("config_products");
  const Outcome outcome =
      run_verb({"config", run.config_path(), "precision.compute=fp32", "precision.fp32_products=bf16x6",
                "precision.rules=[{match: \"blocks.*.attention\", format: fp32}, {match: head, format: tf32}]"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* line :
       {"\n# blocks.0-1.mlp.up            linear        fp32 fp32 x fp32 by bf16x6  fp32 x fp32 by bf16x6  "
        "fp32 x fp32 by bf16x6\n",
        "\n# blocks.0-1.attention.qkv     linear        fp32\n",
        "\n# head                         linear        fp32 fp32 x fp32 by tf32 "}) {
    EXPECT_NE(outcome.output.find(line), std::string::npos) << line << "\nnot in\n" << outcome.output;
  }
}

// A step's gradient depends on 9 products of the forward pass and on as many of the backward pass. If each has the
// relative error e, a step's update has the relative error 18 e, plus that of the order of sums.
TEST(Recipes, Fp32ProductsLearnWhatFp32Does) {
  const auto losses_with = [](const char* products) {
    const ThreadedRun run(std::string("products_") + products);
    const Outcome outcome =
        run.train(1, {"precision.compute=fp32", std::string("precision.fp32_products=") + products, "train.steps=30"});
    if (std::string(products) != "fp32") {
      EXPECT_NE(outcome.output.find(std::string("fp32 products of 9 linear layers: 9 by ") + products),
                std::string::npos)
          << outcome.output;
    }
    return run.losses();
  };
  const auto plain = losses_with("fp32");
  const double learnt = plain.at(1) - plain.at(30);
  ASSERT_GT(learnt, 0.2 * plain.at(1)) << "there is something to learn";
  for (const auto& [products, error] : {std::pair("tf32", 0x1p-10), {"bf16x3", 0x1p-15}, {"bf16x6", 0x1p-24}}) {
    const auto found = losses_with(products);
    EXPECT_NE(found, plain) << products;
    for (const auto& [step, loss] : found) {
      EXPECT_NEAR(loss, plain.at(step), 18 * error * learnt + 1e-5) << products << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace mantissa::testing
