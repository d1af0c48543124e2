// Calls and messages of a step, against counts worked out by hand.
#include "tools/lab/experiment/training_run.h"

#include <gtest/gtest.h>

#include "models/model.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/session.h"

namespace mantissa {
namespace {

using testing::minimal_config;

// Two micro-batches of 2 sequences of 32 tokens, unless settings say otherwise.
Config tiny(std::vector<std::string> settings) {
  std::vector<std::string> all = {"model.layers=2",      "model.width=64",       "model.heads=4",
                                  "model.context=32",    "model.vocab=128",      "device=cpu",
                                  "train.micro_batch=2", "train.global_batch=4", "comm.bucket_mib=0.25"};
  all.insert(all.end(), settings.begin(), settings.end());
  return minimal_config(all);
}

double flops_of(const Config& config) {
  double sum = 0.0;
  for (const KernelCall& call : walk_calls(config, 1).calls) sum += call.work.flops;
  return sum;
}

// PaLM counts attention without a mask, forward once and backward twice: 12 L T C a token. The actual calls process (T
// + 1) / 2 pairs a token, with 4 C a pair forward and 10 C backward, which multiplies queries and keys once more.
TEST(StepWalk, MultipliesAsOftenAsTheModelNeedsAndTheMaskLeaves) {
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const Config config = tiny({compute});
    constexpr double kLayers = 2, kContext = 32, kWidth = 64, kTokens = 4 * 32;
    const double palm = training_flops_per_token(config.model);
    const double needed = palm - 12 * kLayers * kContext * kWidth + 7 * kLayers * (kContext + 1) * kWidth;
    EXPECT_EQ(flops_of(config), needed * kTokens) << compute;
  }
  // By hand: 12 C^2 for a layer and V C for the head, 6 FLOP each.
  EXPECT_EQ(training_flops_per_token(tiny({}).model), 6 * (2 * 12 * 64 * 64 + 128 * 64) + 12 * 2 * 32 * 64);
}

TEST(StepWalk, RecomputationMultipliesForwardProductsAgain) {
  const double once = flops_of(tiny({})), again = flops_of(tiny({"train.recompute=full"}));
  const double blocks = 4 * 32 * (2.0 * 2 * 12 * 64 * 64 + 2 * 2 * 33 * 64);  // of the blocks' forward passes
  EXPECT_EQ(again - once, blocks);
}

TEST(StepWalk, AnUpdateMovesTheStateOfEveryParameter) {
  const Config config = tiny({"precision.compute=bf16"});
  const AutocastPolicy policy(config.precision_rules());
  ParameterSet parameters;
  make_model(config, policy, parameters);
  double bytes = 0.0;  // master, m and v read and written, the gradient read, the working weight written
  for (int index = 0; index < parameters.size(); ++index) {
    bytes += static_cast<double>(parameters[index].numel() * (28 + size_bytes(parameters[index].working_dtype)));
  }
  double found = 0.0;
  for (const KernelCall& call : walk_calls(config, 1).calls) found += call.op == "adamw" ? call.work.bytes : 0.0;
  EXPECT_EQ(found, bytes);
}

// An all-to-all of bf16 gradients and an all-gather of working weights, (N - 1) / N of each.
TEST(StepWalk, RanksSendGradientsAndWeights) {
  const Config config = tiny({"precision.compute=bf16", "comm.wire_dtype=bf16"});
  EXPECT_EQ(walk_calls(config, 1).sent(), 0.0);
  const AutocastPolicy policy(config.precision_rules());
  ParameterSet parameters;
  make_model(config, policy, parameters);
  const BucketLayout layout = lay_out(config, parameters, 2);
  double gradients = 0.0, weights = 0.0;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    gradients += 2.0 * static_cast<double>(bucket.numel) / 2;
    weights += static_cast<double>(bucket.numel * size_bytes(bucket.dtype)) / 2;
  }
  const StepCalls step = walk_calls(config, 2);
  EXPECT_EQ(step.sent_bytes.at("backward"), gradients);
  EXPECT_EQ(step.sent_bytes.at("update"), weights);
  EXPECT_LT(step.sent_bytes.at("decide"), 1000.0) << "records only";
}

TEST(StepWalk, UnitsForCodesTakeThePlaceOfNumbers) {
  const Config config = tiny({"precision.recipe=current"});
  const auto flops_of_codes = [&](Fp8GemmSupport support) {
    double sum = 0.0;
    for (const KernelCall& call : walk_calls(config, 1, support).calls) {
      sum += call.format == ProductFormat::kF8 ? call.work.flops : 0.0;
    }
    return sum;
  };
  EXPECT_EQ(flops_of_codes(Fp8GemmSupport::kNone), 0.0);
  // All three products of the blocks: 6 FLOP for each of 12 C^2 weights of two layers, 128 tokens.
  EXPECT_EQ(flops_of_codes(Fp8GemmSupport::kTensorScaled), 128.0 * 6 * 2 * 12 * 64 * 64);
}

}  // namespace
}  // namespace mantissa
