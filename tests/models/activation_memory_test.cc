// The bytes that a block keeps from its forward to its backward pass: the table of docs/memory.md, checked with models
// that run without computing.
#include <gtest/gtest.h>

#include "core/backend/decorators.h"
#include "models/model.h"
#include "tests/testing/precisions.h"

namespace mantissa {
namespace {

constexpr int64_t kTokens = 2 * 128;
constexpr int64_t kWidth = 384;
// fp32, bytes a token: 8 for a layer norm, 4 for an RMS norm, and the log-sum-exps of 6 heads.
constexpr int64_t kStatistics = 2 * 8 + 4 * 6, kRmsStatistics = 2 * 4 + 4 * 6;

// Bytes in use at the end of the forward pass of a model with this many layers.
int64_t kept_bytes(ModelConfig config, int64_t layers, DType compute, Recompute recompute) {
  config.layers = layers;
  ParameterSet parameters;
  const auto model = create_model(config, parameters);
  DryRunBackend backend;
  for (int index = 0; index < parameters.size(); ++index) {
    parameters[index].weight = backend.make_tensor(DType::kF32, parameters[index].shape, "weight");
  }
  const auto stream = backend.create_stream();
  const UniformPrecision policy(testing::autocast(compute));
  DerivedWeights weights(backend);
  Arena arena(backend.reserve(size_t{1} << 40));
  TapeOptions options;
  options.random.step = backend.make_tensor(DType::kI32, {1}, "step number");
  options.loss_gradient = backend.make_tensor(DType::kF32, {1}, "loss gradient");
  options.recompute = recompute;
  Tape tape(backend, *stream, arena, policy, weights, std::move(options));
  const Tensor tokens = backend.make_tensor(DType::kI32, {kTokens}, "tokens");
  const LossOutput loss = model->loss(tape, tokens, tokens, kTokens / 2);
  return static_cast<int64_t>(arena.used_bytes());
}

struct Kept {
  const char* name;
  ModelConfig config;
  DType compute;
  int64_t none, selective, full;  // bytes a token and block
};

std::vector<Kept> table() {
  const ModelConfig gpt;
  ModelConfig dropout = gpt, encoder = gpt, llama = gpt;
  dropout.dropout = 0.1f;
  encoder.name = "encoder";
  llama.norm = NormKind::kRmsNorm;
  llama.activation = Activation::kSwiglu;
  llama.position = Position::kRope;
  llama.kv_heads = 2;
  llama.bias = llama.tie_head = false;
  // Two residual sums (fp32) and, e bytes a number: norm, queries with keys and values (3), attention, norm, up
  // (4), GELU (4). Selective keeps 3 + 1 + 4 of these.
  const auto gpt_none = [](int64_t e) { return (8 + 14 * e) * kWidth + kStatistics; };
  const auto gpt_selective = [](int64_t e) { return (8 + 8 * e) * kWidth + kStatistics; };
  // Keys and values have 2 of 6 heads: 5/3 instead of 3. Gate and up take 8, their product 4.
  const int64_t llama_none = (8 + (1 + 1 + 1 + 8 + 4) * 2) * kWidth + 2 * 5 * kWidth / 3 + kRmsStatistics;
  const int64_t llama_selective = (8 + (1 + 8) * 2) * kWidth + 2 * 5 * kWidth / 3 + kRmsStatistics;
  return {{"gpt, bf16", gpt, DType::kBF16, gpt_none(2), gpt_selective(2), 4 * kWidth},
          {"gpt, fp32", gpt, DType::kF32, gpt_none(4), gpt_selective(4), 4 * kWidth},
          {"dropout, bf16", dropout, DType::kBF16, gpt_none(2), gpt_selective(2), 4 * kWidth},
          {"llama, bf16", llama, DType::kBF16, llama_none, llama_selective, 4 * kWidth},
          {"encoder, bf16", encoder, DType::kBF16, gpt_none(2), gpt_selective(2), 4 * kWidth},
          // In fp32 a norm's result is also the products' input.
          {"encoder, fp32", encoder, DType::kF32, gpt_none(4), gpt_selective(4), 4 * kWidth}};
}

TEST(ActivationMemory, ABlockKeepsWhatTheTableSays) {
  for (const Kept& kept : table()) {
    for (const auto& [recompute, expected] : {std::pair(Recompute::kNone, kept.none),
                                              {Recompute::kSelective, kept.selective},
                                              {Recompute::kFull, kept.full}}) {
      const auto bytes = [&](int64_t layers) { return kept_bytes(kept.config, layers, kept.compute, recompute); };
      EXPECT_EQ(bytes(3) - bytes(2), kTokens * expected) << kept.name << ", " << static_cast<int>(recompute);
    }
  }
}

}  // namespace
}  // namespace mantissa
