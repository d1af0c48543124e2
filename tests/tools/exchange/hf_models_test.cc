// Models of every supported family against Hugging Face's transformers: see make_hf_models.py.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/models/training_curve.h"
#include "tests/testing/values.h"
#include "tests/tools/exchange/hf_reference.h"

namespace mantissa {
namespace {

using testing::HfReference;
using testing::relative_error;

constexpr double kFp32 = 1e-5;

class HfModel : public ::testing::TestWithParam<const char*> {
 protected:
  // The model with its weights, in fp32.
  struct Bound {
    explicit Bound(const ModelSource& source) : test(source.model()) {
      set_threads(1);  // tiny kernels
      assign_working_dtypes(test.parameters, policy, WorkingWeights::kLow);
      host.bind(test.parameters);
      for (int i = 0; i < test.parameters.size(); ++i) {
        host.set_weight(test.parameters[i], source.values(test.parameters[i].name));
      }
    }
    const AutocastPolicy policy{{{.format = DType::kF32}}};
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

TEST_P(HfModel, TwentySteps) {
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
