// A model's loss and gradients must not depend on the number of threads, the split into micro-batches, or how often it
// runs. Also: what evaluation leaves out.
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/thread_team.h"
#include "tests/models/rounding_bounds.h"
#include "tests/models/tiny_models.h"
#include "tests/models/training_pass.h"
#include "tests/testing/precisions.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::Gradients;
using testing::MicroBatch;
using testing::PassResult;

constexpr int64_t kLength = 48, kSamples = 6;

// Large enough for every kernel to use several threads.
ModelConfig config(const std::string& name, bool llama) {
  ModelConfig config;
  config.name = name;
  config.layers = 2;
  config.width = 96;
  config.heads = 4;
  config.context = kLength;
  config.vocab = 101;
  config.dropout = 0.1f;
  config.init_stddev = 0.1f;
  if (llama) {
    config.kv_heads = 2;
    testing::use_llama_layers(config);
  }
  return config;
}

class Invariance : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {
 protected:
  Invariance() : test_(GetParam().second) {
    host_.bind(test_.parameters);
    host_.initialize(test_.parameters, 1);
    batch_ = {testing::random_tokens(kSamples * kLength, 101, 1), testing::random_tokens(kSamples * kLength, 101, 2),
              kLength};
    for (size_t i = 5; i < batch_.targets.size(); i += 9) batch_.targets[i] = kIgnoreIndex;
  }
  ~Invariance() override { set_threads(2); }

  // Samples [begin, begin + count) of the batch.
  MicroBatch samples(int64_t begin, int64_t count) const {
    const auto part = [&](const std::vector<int32_t>& values) {
      return std::vector<int32_t>(values.begin() + begin * kLength, values.begin() + (begin + count) * kLength);
    };
    return {part(batch_.tokens), part(batch_.targets), kLength};
  }
  // Passes over micro-batches of these sizes with one accumulated gradient.
  std::pair<double, Gradients> step(const std::vector<int64_t>& split, const Precision& precision) {
    const UniformPrecision policy(precision);
    test_.parameters.forget_gradients();
    const float seed = 1.0f / static_cast<float>(counted_targets(batch_));
    double loss = 0.0;
    int64_t first = 0;
    for (const int64_t count : split) {
      TapeOptions options;
      options.random = {.seed = 4, .step = host_.step(2), .first_sample = static_cast<uint32_t>(first)};
      loss += run_pass(host_, test_, samples(first, count), policy, seed, std::move(options)).loss_sum;
      first += count;
    }
    return {loss, gradients_of(host_, test_.parameters)};
  }

  testing::TapeHost host_;
  testing::TestModel test_;
  MicroBatch batch_;
};

INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         ::testing::Values(std::pair("Gpt", config("gpt", false)),
                                           std::pair("Llama", config("gpt", true)),
                                           std::pair("Encoder", config("encoder", false))),
                         [](const auto& info) { return info.param.first; });

TEST_P(Invariance, NumberOfThreadsChangesNoBit) {
  for (const Precision& precision : {Precision{}, testing::autocast(DType::kBF16), testing::autocast(DType::kF16)}) {
    set_threads(1);
    const auto [loss, gradients] = step({kSamples}, precision);
    for (const int count : {2, 3}) {
      set_threads(count);
      const auto [other_loss, other_gradients] = step({kSamples}, precision);
      EXPECT_EQ(other_loss, loss) << count << " threads, " << name(precision.low);
      for (const auto& [parameter, gradient] : gradients) {
        EXPECT_EQ(other_gradients.at(parameter), gradient)
            << parameter << ", " << count << " threads, " << name(precision.low);
      }
    }
  }
}

// fp32: sums over the batch are split elsewhere, and products of other heights may use other kernels. Each adds at most
// sqrt(rows) = 17 roundings of 2^-24. Through the network a loss and a gradient keep a few times that: 4e-6.
TEST_P(Invariance, SplitIntoMicroBatchesChangesRoundingOnly) {
  const auto [loss, gradients] = step({kSamples}, {});
  for (const std::vector<int64_t>& split : {std::vector<int64_t>{3, 3}, {1, 4, 1}, {1, 1, 1, 1, 1, 1}}) {
    const auto [split_loss, split_gradients] = step(split, {});
    EXPECT_NEAR(split_loss, loss, 4e-6 * loss) << split.size();
    for (const auto& [parameter, gradient] : gradients) {
      EXPECT_LT(testing::relative_error(split_gradients.at(parameter), gradient), 4e-6)
          << parameter << ", " << split.size();
    }
  }
}

TEST_P(Invariance, RepeatedStepIsTheSame) {
  const auto first = step({2, 4}, testing::autocast(DType::kBF16));
  EXPECT_EQ(step({2, 4}, testing::autocast(DType::kBF16)), first);
  EXPECT_NO_THROW(host_.arena().rewind());
}

// With fusion off, each op is its own kernel. Otherwise a norm computes the sum that it reads, and products include
// gelu. Both give the same bits, except for 16-bit gelu on a GPU: its products omit some of the roundings that the
// bound counts.
TEST_P(Invariance, FusedOpsChangeNoBit) {
  const auto pass = [&](const PrecisionPolicy& policy, bool shown) {
    test_.parameters.forget_gradients();
    TapeOptions options;
    options.random = {.seed = 4, .step = host_.step(2)};
    if (shown) options.after_op = [](std::string_view, std::string_view, Tensor&) {};
    const PassResult result =
        run_pass(host_, test_, host_.is_slow() ? samples(0, 1) : batch_, policy, 1.0f, std::move(options));
    std::vector<float> all = testing::flattened(gradients_of(host_, test_.parameters));
    all.push_back(static_cast<float>(result.loss_sum));
    return all;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (host_.is_slow() && dtype != DType::kBF16) continue;
    testing::PrecisionByLayer mixed(testing::autocast(dtype));
    mixed["blocks.0.mlp"].forced[static_cast<size_t>(Op::kGelu)] = DType::kF32;
    mixed["blocks.1.mlp.down"].low = dtype == DType::kF16 ? DType::kBF16 : DType::kF16;
    mixed["blocks.1"].forced[static_cast<size_t>(Op::kAdd)] = DType::kBF16;
    const UniformPrecision uniform(testing::autocast(dtype));
    for (const PrecisionPolicy* policy : std::initializer_list<const PrecisionPolicy*>{&uniform, &mixed}) {
      const bool is_exact = !host_.is_gpu() || dtype == DType::kF32;
      EXPECT_LE(testing::relative_error(pass(*policy, false), pass(*policy, true)),
                is_exact ? 0.0 : testing::gradient_bound(dtype))
          << name(dtype);
    }
  }
}

TEST_P(Invariance, EvaluationHasNoDropoutAndDependsOnNoRandomKey) {
  const UniformPrecision fp32;
  const auto logits = [&](TapeMode mode, int32_t step) {
    TapeOptions options;
    options.mode = mode;
    options.random = {.seed = 4, .step = host_.step(step)};
    return run_pass(host_, test_, batch_, fp32, 1.0f, std::move(options)).logits;
  };
  const auto evaluated = logits(TapeMode::kEvaluation, 0);
  EXPECT_EQ(logits(TapeMode::kEvaluation, 1), evaluated);
  EXPECT_NE(logits(TapeMode::kTraining, 0), evaluated);
  EXPECT_NE(logits(TapeMode::kTraining, 1), logits(TapeMode::kTraining, 0));
}

// A causal model must not look ahead; the encoder must.
TEST_P(Invariance, LaterTokensMatterToTheEncoderOnly) {
  const UniformPrecision fp32;
  const auto logits = [&](const MicroBatch& batch) {
    TapeOptions options;
    options.mode = TapeMode::kEvaluation;
    auto all = run_pass(host_, test_, batch, fp32, 1.0f, std::move(options)).logits;
    all.resize(20 * 101);  // of the first 20 positions
    return all;
  };
  const MicroBatch original = samples(0, 1);
  MicroBatch changed = original;
  changed.tokens[20] = (changed.tokens[20] + 1) % 101;
  EXPECT_EQ(logits(changed) == logits(original), GetParam().second.name != "encoder");
}

TEST_P(Invariance, ShorterSequencesRun) {
  const UniformPrecision fp32;
  MicroBatch half = samples(0, 1);
  half.sequence_length = kLength / 2;
  const PassResult result = run_pass(host_, test_, half, fp32, 1.0f);
  EXPECT_TRUE(std::isfinite(result.loss_sum));
  EXPECT_GT(result.loss_sum, 0.0);
}

}  // namespace
}  // namespace mantissa
