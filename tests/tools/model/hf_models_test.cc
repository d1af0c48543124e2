// Models of every supported family against Hugging Face's transformers: see make_hf_models.py.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/ops/attention.h"
#include "tests/models/rounding_bounds.h"
#include "tests/models/training_curve.h"
#include "tests/testing/values.h"
#include "tests/tools/model/hf_reference.h"

namespace mantissa {
namespace {

using testing::HfReference;
using testing::relative_error;

constexpr double kFp32 = 1e-5;

class HfModel : public ::testing::TestWithParam<const char*> {
 protected:
  // The model with its weights.
  struct Bound {
    explicit Bound(const ModelSource& source, DType dtype = DType::kF32)
        : policy({{.format = dtype}}), test(source.model()) {
      set_threads(1);  // tiny kernels
      assign_working_dtypes(test.parameters, policy, WorkingWeights::kLow);
      host.bind(test.parameters);
      for (int i = 0; i < test.parameters.size(); ++i) {
        host.set_weight(test.parameters[i], source.values(test.parameters[i].name));
      }
    }
    const AutocastPolicy policy;
    testing::TapeHost host;
    testing::TestModel test;
  };

  const HfReference reference_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Families, HfModel, ::testing::ValuesIn(testing::kHfModels),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HfModel, LogitsLossAndEveryGradient) {
  Bound bound(reference_.source());
  const testing::MicroBatch batch = reference_.batch();
  const double count = static_cast<double>(counted_targets(batch));
  const testing::PassResult pass =
      run_pass(bound.host, bound.test, batch, bound.policy, 1.0f / static_cast<float>(count));
  EXPECT_LT(relative_error(pass.logits, reference_.values("logits")), kFp32);
  EXPECT_NEAR(pass.loss_sum / count, reference_.values("loss").at(0), kFp32 * reference_.values("loss").at(0));
  const testing::Gradients gradients = gradients_of(bound.host, bound.test.parameters);
  for (int i = 0; i < bound.test.parameters.size(); ++i) {
    const Parameter& parameter = bound.test.parameters[i];
    EXPECT_LT(relative_error(gradients.at(parameter.name), reference_.gradient(parameter)), kFp32) << parameter.name;
  }
}

// In texts of all lengths from the prompt on.
TEST_P(HfModel, GreedyContinuation) {
  Bound bound(reference_.source());
  const std::vector<int32_t> expected = reference_.integers("greedy");
  constexpr size_t kPrompt = 8;
  std::vector<int32_t> text(expected.begin(), expected.begin() + kPrompt);
  while (text.size() < expected.size()) {
    const testing::MicroBatch batch{text, text, std::ssize(text)};
    const std::vector<float> logits =
        run_pass(bound.host, bound.test, batch, bound.policy, 1.0f, {.mode = TapeMode::kEvaluation}).logits;
    const auto last = logits.end() - reference_.source().model().vocab;
    text.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
  }
  EXPECT_EQ(text, expected);
}

// Logits of a text continued token by token, against a pass over the whole text. Both are within the bound of the
// exact logits.
TEST_P(HfModel, LogitsThroughTheCacheOfKeysAndValues) {
  constexpr int64_t kPrompt = 8;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(name(dtype));
    Bound bound(reference_.source(), dtype);
    testing::TapeHost& host = bound.host;
    const std::vector<int32_t> text = reference_.integers("greedy");
    const testing::MicroBatch whole{text, text, std::ssize(text)};
    const std::vector<float> expected =
        run_pass(host, bound.test, whole, bound.policy, 1.0f, {.mode = TapeMode::kEvaluation}).logits;
    const double allowed = dtype == DType::kF32 ? kFp32 : 2.0 * testing::logits_bound(dtype);
    KeyValueCache cache(host.backend(), 2, std::ssize(text));
    const int64_t vocab = reference_.source().model().vocab;
    const auto logits_at = [&](int64_t begin, int64_t count) {
      const std::vector<int32_t> tokens(text.begin() + begin, text.begin() + begin + count);
      std::vector<int32_t> positions(tokens.size()), starts(tokens.size(), static_cast<int32_t>(-begin));
      for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = static_cast<int32_t>(begin + i);
      cache.set_rows(begin == 0 ? CachedPass::kPrompt : CachedPass::kStep,
                     host.tensor(std::vector<int32_t>(tokens.size(), 1)), host.tensor(positions));
      const auto tape = host.tape(bound.policy, {.mode = TapeMode::kEvaluation,
                                                 .document_starts = begin == 0 ? Tensor() : host.tensor(starts),
                                                 .cache = &cache});
      return host.values(bound.test.model->logits(*tape, host.tensor(tokens), count).value);
    };
    const auto expect_near = [&](const std::vector<float>& logits, int64_t begin) {
      const std::vector<float> part(expected.begin() + begin * vocab,
                                    expected.begin() + begin * vocab + std::ssize(logits));
      EXPECT_LT(relative_error(logits, part), allowed) << begin;
    };
    expect_near(logits_at(0, kPrompt), 0);
    for (int64_t t = kPrompt; t < std::ssize(text); ++t) expect_near(logits_at(t, 1), t);
  }
}

TEST_P(HfModel, TwentySteps) {
  if (testing::TapeHost().is_slow() && testing::is_left_out_on_slow_devices(GetParam())) {
    GTEST_SKIP() << "three families on the emulated GPU";
  }
  const testing::CurveTask task{
      .model = reference_.source().model(),
      .weight = [&](const Parameter& parameter) { return reference_.source().values(parameter.name); },
      .batch = [&](int step) { return reference_.batch(step); },
      .learning_rates = std::vector<float>(20, 3e-3f),
      .clip_norm = 1.0};
  const testing::Curve curve = testing::train_curve(task, DType::kF32, WorkingWeights::kLow);
  EXPECT_LT(testing::worst_error(curve.losses, reference_.values("curve/loss")), kFp32);
}

}  // namespace
}  // namespace mantissa
