// Fault search: check_outputs names the first op that made a NaN or Inf. The after_op hook can plant a fault.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::scaled;

class TapeChecks : public ::testing::Test {
 protected:
  TapeChecks() {
    host_.bind(parameters_);
    host_.set_weight(weight_, {1, 2, 3});
  }
  // Three layers, each with one op.
  Var forward(Tape& tape) {
    Var x = leaf(tape, weight_);
    const Tape::LayerGuard blocks(tape, "blocks");
    for (const char* layer : {"0", "1", "2"}) {
      const Tape::LayerGuard guard(tape, layer);
      x = scaled(tape, x, 2.0f);
    }
    return x;
  }
  // Writes `value` into element 1 of the output of `layer`.
  TapeOptions inject(const std::string& layer, float value) {
    TapeOptions options;
    options.check_outputs = true;
    options.after_op = [this, layer, value](std::string_view at, std::string_view, Tensor& output) {
      if (at != layer) return;
      host_.backend().fill(output.slice(1, 1), value, host_.stream());
    };
    return options;
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& weight_ = parameters_.add("w.weight", {3}, {});
};

TEST_F(TapeChecks, FiniteOutputsAreNotReported) {
  TapeOptions options;
  options.check_outputs = true;
  const auto tape = host_.tape(fp32_, std::move(options));
  forward(*tape);
  EXPECT_FALSE(tape->first_non_finite().has_value());
}

TEST_F(TapeChecks, NamesTheFirstOpAndLayerOfANaN) {
  const auto tape = host_.tape(fp32_, inject("blocks.1", NAN));
  forward(*tape);  // blocks.2 passes the NaN on: the first one counts
  const auto& found = tape->first_non_finite();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "gelu");
  EXPECT_EQ(found->layer, "blocks.1");
  EXPECT_EQ(found->shape, Shape{3});
  EXPECT_EQ(found->stats.first_bad, 1);
  EXPECT_EQ(found->stats.nan_count, 1);
  EXPECT_EQ(found->stats.inf_count, 0);
}

TEST_F(TapeChecks, TellsWhatTheOpWasMadeOf) {
  weight_.weight = host_.tensor({0, -3, 0.25f}, {3});
  const auto tape = host_.tape(fp32_, inject("blocks.1", NAN));
  forward(*tape);
  ASSERT_TRUE(tape->first_non_finite().has_value());
  const auto& inputs = tape->first_non_finite()->inputs;
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_EQ(inputs[0].name, "gelu of 'blocks.0'");
  EXPECT_EQ(inputs[0].largest, 6.0f);
  EXPECT_EQ(inputs[0].smallest, 0.5f);
  EXPECT_EQ(inputs[0].zeros, 1);
  EXPECT_EQ(inputs[0].non_finite, 0);
  EXPECT_EQ(to_text(inputs[0]), "gelu of 'blocks.0' (fp32, magnitudes 0.5 to 6, 1 of 3 zero)");
}

TEST_F(TapeChecks, RangesOfParametersTellOfTheirNaN) {
  weight_.weight = host_.tensor({NAN, -INFINITY, 0.375f}, {3});
  TapeOptions options;
  options.check_outputs = true;
  const auto tape = host_.tape(fp32_, std::move(options));
  forward(*tape);
  ASSERT_TRUE(tape->first_non_finite().has_value());
  const auto& inputs = tape->first_non_finite()->inputs;
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_EQ(to_text(inputs[0]), "parameter 'w.weight' (fp32, magnitudes 0.25 to 0.375, 2 of 3 NaN or Inf)");
}

TEST_F(TapeChecks, NoBackwardPassFollows) {
  TapeOptions options;
  options.check_outputs = true;
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var x = forward(*tape);
  EXPECT_THROW(tape->backward(x), ContractError);
}

TEST_F(TapeChecks, TellsInfFromNaN) {
  const auto tape = host_.tape(fp32_, inject("blocks.0", -INFINITY));
  forward(*tape);
  ASSERT_TRUE(tape->first_non_finite().has_value());
  EXPECT_EQ(tape->first_non_finite()->layer, "blocks.0");
  EXPECT_EQ(tape->first_non_finite()->stats.inf_count, 1);
  EXPECT_EQ(tape->first_non_finite()->stats.nan_count, 0);
}

TEST_F(TapeChecks, FindsWhatOverflowsInTheOutputsDtype) {
  Parameter& large = parameters_.add("large.weight", {3}, {});
  large.working_dtype = DType::kF16;
  large.weight = host_.tensor({1, 2, 60000}, {3}, DType::kF16);
  large.gradient = host_.tensor({0, 0, 0}, {3});
  TapeOptions options;
  options.check_outputs = true;
  const auto tape = host_.tape(fp32_, std::move(options));
  scaled(*tape, leaf(*tape, large), 2.0f);  // fp16 cannot hold 120000
  ASSERT_TRUE(tape->first_non_finite().has_value());
  EXPECT_EQ(tape->first_non_finite()->stats.first_bad, 2);
}

TEST_F(TapeChecks, WorksInEvaluationToo) {
  TapeOptions options = inject("blocks.2", NAN);
  options.mode = TapeMode::kEvaluation;
  const auto tape = host_.tape(fp32_, std::move(options));
  forward(*tape);
  ASSERT_TRUE(tape->first_non_finite().has_value());
  EXPECT_EQ(tape->first_non_finite()->layer, "blocks.2");
}

TEST_F(TapeChecks, NothingIsExaminedUnlessAskedFor) {
  TapeOptions options = inject("blocks.1", NAN);
  options.check_outputs = false;
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var x = forward(*tape);
  EXPECT_TRUE(std::isnan(host_.values(x.value)[1]));
  EXPECT_FALSE(tape->first_non_finite().has_value());
}

TEST_F(TapeChecks, AfterOpSeesEveryOpWithItsLayer) {
  std::vector<std::string> seen;
  TapeOptions options;
  options.after_op = [&](std::string_view layer, std::string_view op, Tensor&) {
    seen.push_back(std::string(layer) + "/" + std::string(op));
  };
  const auto tape = host_.tape(fp32_, std::move(options));
  forward(*tape);
  EXPECT_EQ(seen, (std::vector<std::string>{"/embedding", "blocks.0/gelu", "blocks.1/gelu", "blocks.2/gelu"}));
}

// --- Fault search in the backward pass: check_gradients names the first op whose backward function made a NaN or Inf;
// the after_backward hook can plant one.

using testing::weighted_sum;

class TapeGradientChecks : public ::testing::Test {
 protected:
  TapeGradientChecks() {
    host_.bind(parameters_);
    host_.set_weight(weight_, {1e-30f, 2e-30f, 0.0f});
  }
  // Three layers with one op each, then a loss. Values stay finite. Gradients of 1e10 grow by 1e30 in blocks.1, too
  // much for fp32, and by 2 in blocks.2.
  Var forward(Tape& tape, float growth = 1e30f) {
    Var x = leaf(tape, weight_);
    const Tape::LayerGuard blocks(tape, "blocks");
    for (const auto& [layer, factor] : {std::pair{"0", 3.0f}, {"1", growth}, {"2", 2.0f}}) {
      x = tape.recompute(std::move(x), [layer = layer, factor = factor](Tape& t, Var input) {
        const Tape::LayerGuard guard(t, layer);
        return scaled(t, input, factor);
      });
    }
    return weighted_sum(tape, x, {1e10f, 0.0f, -2e10f});
  }
  TapeOptions checking(Recompute recompute = Recompute::kNone) {
    TapeOptions options;
    options.check_gradients = true;
    options.recompute = recompute;
    return options;
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& weight_ = parameters_.add("w.weight", {3}, {});
};

TEST_F(TapeGradientChecks, NamesTheFirstOpItsGradientAndItsInputs) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    parameters_.forget_gradients();
    {
      const auto tape = host_.tape(fp32_, checking(recompute));
      tape->backward(forward(*tape));
      const auto& found = tape->first_non_finite();
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->pass, Pass::kBackward);
      EXPECT_EQ(found->op, "gelu");
      EXPECT_EQ(found->layer, "blocks.1");
      EXPECT_EQ(found->made, "the gradient of gelu of 'blocks.0'");
      EXPECT_EQ(found->shape, Shape{3});
      EXPECT_EQ(found->stats.first_bad, 0);
      EXPECT_EQ(found->stats.inf_count, 2);
      EXPECT_EQ(found->stats.nan_count, 0);
      ASSERT_TRUE(found->incoming.has_value());
      EXPECT_EQ(found->incoming->name, "gradient of gelu of 'blocks.1'");
      EXPECT_EQ(found->incoming->largest, 4e10f);
      EXPECT_EQ(found->incoming->zeros, 1);
      EXPECT_EQ(found->incoming->non_finite, 0);
      ASSERT_EQ(found->inputs.size(), 1u);
      EXPECT_EQ(found->inputs[0].name, "gelu of 'blocks.0'");
      EXPECT_EQ(found->inputs[0].largest, 3.0f * 2e-30f);
    }
    EXPECT_EQ(weight_.pending_uses, 0);  // although the pass ended before the parameter's op
    EXPECT_FALSE(weight_.gradient_written);
  }
}

TEST_F(TapeGradientChecks, AFinitePassIsThatOfATapeThatDoesNotCheck) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const auto gradient = [&](bool checks) {
      parameters_.forget_gradients();
      TapeOptions options = checking(recompute);
      options.check_gradients = checks;
      const auto tape = host_.tape(fp32_, std::move(options));
      tape->backward(forward(*tape, 0.5f));
      EXPECT_FALSE(tape->first_non_finite().has_value());
      EXPECT_EQ(tape->size(), 0u);
      return host_.values(weight_.gradient);
    };
    const auto checked = gradient(true);
    EXPECT_EQ(checked, (std::vector<float>{3e10f, 0.0f, -6e10f}));
    EXPECT_EQ(checked, gradient(false));
  }
}

// Each contribution is finite, but their sum is not: the op that added the second is reported.
TEST_F(TapeGradientChecks, FindsAParametersSumThatOverflows) {
  const auto tape = host_.tape(fp32_, checking());
  Var sum;
  {
    const Tape::LayerGuard first(*tape, "first");
    sum = weighted_sum(*tape, leaf(*tape, weight_), {3e38f, 0.0f, 0.0f});
  }
  tape->backward(sum);
  EXPECT_FALSE(tape->first_non_finite().has_value());
  const auto again = host_.tape(fp32_, checking());  // stands for the next micro-batch
  {
    const Tape::LayerGuard second(*again, "second");
    sum = weighted_sum(*again, leaf(*again, weight_), {3e38f, 0.0f, 0.0f});
  }
  again->backward(sum);
  const auto& found = again->first_non_finite();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "embedding");
  EXPECT_EQ(found->layer, "second");
  EXPECT_EQ(found->made, "the gradient of parameter 'w.weight'");
  ASSERT_EQ(found->inputs.size(), 1u);
  EXPECT_EQ(found->inputs[0].name, "parameter 'w.weight'");
}

TEST_F(TapeGradientChecks, NamesAPlantedOp) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    std::vector<std::string> seen;
    TapeOptions options = checking(recompute);
    options.after_backward = [&](std::string_view layer, std::string_view op, Tensor& gradient) {
      seen.push_back(std::string(layer) + "/" + std::string(op));
      if (layer == "blocks.1") host_.backend().fill(gradient.slice(1, 1), NAN, host_.stream());
    };
    const auto tape = host_.tape(fp32_, std::move(options));
    tape->backward(forward(*tape, 1.0f));
    EXPECT_EQ(seen, (std::vector<std::string>{"blocks/cross_entropy", "blocks.2/gelu", "blocks.1/gelu"}));
    ASSERT_TRUE(tape->first_non_finite().has_value());
    EXPECT_EQ(tape->first_non_finite()->layer, "blocks.1");
    EXPECT_EQ(tape->first_non_finite()->stats.nan_count, 1);
    EXPECT_EQ(tape->first_non_finite()->stats.first_bad, 1);
  }
}

TEST_F(TapeGradientChecks, AScaleThatIsNotFiniteIsTheFirstOpsGradient) {
  const auto tape = host_.tape(fp32_, checking(), INFINITY);
  tape->backward(forward(*tape, 1.0f));
  const auto& found = tape->first_non_finite();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "cross_entropy");
  EXPECT_EQ(to_text(*found->incoming),
            "gradient of cross_entropy of 'blocks' (fp32, no finite value but 0, 1 of 1 NaN or Inf)");
}

}  // namespace
}  // namespace mantissa
