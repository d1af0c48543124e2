// Tape::recompute: the tensors a recomputed segment keeps, and that its second run repeats the first.
#include <gtest/gtest.h>

#include "core/kernels/elementwise/args.h"
#include "core/ops/add.h"
#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::scaled;
using testing::weighted_sum;

using Values = std::vector<float>;

constexpr int64_t kTensorElements = 4096;
constexpr size_t kTensorBytes = kTensorElements * sizeof(float);

class RecomputeTest : public ::testing::Test {
 protected:
  RecomputeTest() {
    for (const char* name : {"a.weight", "b.weight"})
      parameters_.add(name, {1, kTensorElements}, {Init::Kind::kNormal, 1});
    square_ = &parameters_.add("square.weight", {3, 3}, {Init::Kind::kNormal, 1});
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  // Appends parameters to ready_ as they become ready.
  std::unique_ptr<Tape> tape(Recompute recompute, TapeOptions options = {}) {
    options.recompute = recompute;
    options.gradient_ready = [this](Parameter& parameter) { ready_.push_back(parameter.name); };
    return host_.tape(policy_, std::move(options));
  }
  Values gradient(int index) { return host_.values(parameters_[index].gradient); }

  testing::TapeHost host_;
  testing::PrecisionByLayer policy_{Precision{}};
  ParameterSet parameters_;
  Parameter* square_;
  std::vector<std::string> ready_;
};

// Four ops; each keeps its input.
Var four_times(Tape& tape, Var x) {
  for (int op = 0; op < 4; ++op) x = scaled(tape, x, 1.25f);
  return x;
}

TEST_F(RecomputeTest, KeepsInputsOfSegmentsOnlyAndOneSegmentInTheBackwardPass) {
  constexpr int kSegments = 10;
  const auto peak = [&](Recompute recompute) {
    testing::TapeHost host;
    host.bind(parameters_);
    TapeOptions options;
    options.recompute = recompute;
    const auto tape = host.tape(policy_, std::move(options));
    Var x = leaf(*tape, parameters_[0]);
    for (int segment = 0; segment < kSegments; ++segment) x = tape->recompute(std::move(x), four_times);
    const size_t used = host.arena().used_bytes();
    EXPECT_EQ(used, (recompute == Recompute::kFull ? kSegments + 1 : 4 * kSegments + 1) * kTensorBytes);
    tape->backward(weighted_sum(*tape, x, Values(kTensorElements, 1.0f)));
    return host.arena().peak_bytes();
  };
  // kNone: two more gradients, of an op and of its input. kFull: the last segment's four results, the last result's
  // gradient, and a hole that the loss (64 bytes) made too small for a block.
  EXPECT_EQ(peak(Recompute::kNone), (4 * kSegments + 1 + 2) * kTensorBytes + Arena::kAlignmentBytes);
  EXPECT_EQ(peak(Recompute::kFull), (kSegments + 1 + 4 + 1 + 1) * kTensorBytes);
}

TEST_F(RecomputeTest, TiedParameterIsReadyOnceAndLast) {
  // Two segments and the part before them use b; only the second segment uses a.
  const auto pass = [&](Recompute recompute) {
    ready_.clear();
    parameters_.forget_gradients();
    const auto tape = this->tape(recompute);
    const auto segment = [&](Parameter& first, Parameter& second) {
      return [&first, &second](Tape& t, Var x) {
        Tensor sum = t.allocate(DType::kF32, x.value.shape());
        const Var u = leaf(t, first), v = leaf(t, second);
        t.backend().run(AddArgs{.a = x.value, .b = u.value, .y = sum}, t.stream());
        t.backend().run(AddArgs{.a = sum, .b = v.value, .y = sum}, t.stream());
        return t.record(Op::kAdd, sum, {x, u, v}, {}, [x, u, v](Tape& back, Tensor dy) {
          for (const Var& input : {x, u, v}) back.give_gradient(input, dy);
        });
      };
    };
    Var x = tape->recompute(leaf(*tape, parameters_[1]), segment(parameters_[1], parameters_[1]));
    x = tape->recompute(scaled(*tape, x, 3.0f), segment(parameters_[0], parameters_[1]));
    EXPECT_EQ(parameters_[0].pending_uses, 1);
    EXPECT_EQ(parameters_[1].pending_uses, 4);
    tape->backward(weighted_sum(*tape, x, Values(kTensorElements, 1.0f)));
    EXPECT_EQ(tape->size(), 0u);
    for (int index : {0, 1}) EXPECT_EQ(parameters_[index].pending_uses, 0);
    return std::pair(gradient(0), gradient(1));
  };
  const auto kept = pass(Recompute::kNone);
  EXPECT_EQ(ready_, (std::vector<std::string>{"a.weight", "b.weight"}));
  EXPECT_EQ(kept.second.front(), 3.0f + 3.0f + 3.0f + 1.0f);
  EXPECT_EQ(pass(Recompute::kFull), kept);
  EXPECT_EQ(ready_, (std::vector<std::string>{"a.weight", "b.weight"}));
}

// Dropout before, in, between and after two segments: every draw must repeat that of the first run.
TEST_F(RecomputeTest, SecondRunDrawsTheSameRandomSites) {
  const auto pass = [&](Recompute recompute) {
    parameters_.forget_gradients();
    TapeOptions options;
    options.random = {.seed = 3, .step = host_.step(1)};
    const auto tape = this->tape(recompute, std::move(options));
    const auto segment = [](Tape& t, Var x) {
      x = scaled(t, dropout(t, std::move(x), 0.5f, 1), 2.0f);
      return dropout(t, std::move(x), 0.25f, 1);
    };
    Var x = dropout(*tape, leaf(*tape, parameters_[0]), 0.25f, 1);
    x = tape->recompute(std::move(x), segment);
    x = dropout(*tape, std::move(x), 0.25f, 1);
    x = tape->recompute(std::move(x), segment);
    EXPECT_EQ(tape->next_random_site(), 6u) << "sites that follow do not depend on what is dropped";
    tape->backward(weighted_sum(*tape, x, testing::normal_values(kTensorElements, 7)));
    return gradient(0);
  };
  const Values kept = pass(Recompute::kNone);
  EXPECT_GT(std::count(kept.begin(), kept.end(), 0.0f), kTensorElements / 2) << "the masks matter";
  EXPECT_EQ(pass(Recompute::kFull), kept);
}

TEST_F(RecomputeTest, SecondRunHasTheLayerAndTheAutocastScopeOfTheFirst) {
  policy_["blocks.0.low"].enabled = true;
  policy_["blocks.0.low"].forced[static_cast<size_t>(Op::kLinear)] = DType::kBF16;
  const auto pass = [&](Recompute recompute) {
    parameters_.forget_gradients();
    const auto tape = this->tape(recompute);
    Var x = leaf(*tape, *square_);
    std::vector<DType> dtypes;
    {
      const Tape::LayerGuard blocks(*tape, "blocks");
      autocast_state() = {.enabled = true, .dtype = DType::kF16};
      x = tape->recompute(std::move(x), [&](Tape& t, Var in) {
        const Tape::LayerGuard block(t, "0");
        Var y = linear(t, std::move(in), *square_, nullptr);  // the scope's dtype, fp16; kLow is the first rule
        autocast_state() = {};
        const Tape::LayerGuard low(t, "low");
        Var z = linear(t, std::move(y), *square_, nullptr);  // the layer's dtype
        dtypes.push_back(z.value.dtype());
        autocast_state() = {.enabled = true, .dtype = DType::kF16};
        return z;
      });
      autocast_state() = {};
    }
    const Tape::LayerGuard elsewhere(*tape, "head");
    tape->backward(weighted_sum(*tape, x, Values(9, 1.0f)));
    EXPECT_EQ(tape->layer(), "head");
    EXPECT_FALSE(autocast_state().enabled.has_value());
    EXPECT_EQ(dtypes, std::vector<DType>(recompute == Recompute::kFull ? 2 : 1, DType::kBF16));
    return gradient(2);
  };
  const Values kept = pass(Recompute::kNone);
  EXPECT_EQ(pass(Recompute::kFull), kept);
}

TEST_F(RecomputeTest, HooksSeeEveryOpOnce) {
  const auto pass = [&](Recompute recompute) {
    std::vector<std::string> seen;
    TapeOptions options;
    options.after_op = [&](std::string_view layer, std::string_view op, Tensor&) {
      seen.push_back(fmt::format("{} of {}", op, layer));
    };
    const auto tape = this->tape(recompute, std::move(options));
    const Var x = tape->recompute(leaf(*tape, parameters_[0]), four_times);
    const Var loss = weighted_sum(*tape, x, Values(kTensorElements, 1.0f));
    tape->backward(loss);
    return seen;
  };
  const auto kept = pass(Recompute::kNone);
  EXPECT_EQ(kept.size(), 6u);
  EXPECT_EQ(pass(Recompute::kFull), kept);
}

TEST_F(RecomputeTest, SegmentWithinASegmentIsOneOfTheSecondRun) {
  const auto pass = [&](Recompute recompute) {
    parameters_.forget_gradients();
    int runs = 0;
    const auto inner = [&](Tape& t, Var x) {
      ++runs;
      return four_times(t, std::move(x));
    };
    const auto tape = this->tape(recompute);
    Var x = tape->recompute(leaf(*tape, parameters_[0]),
                            [&](Tape& t, Var in) { return scaled(t, t.recompute(scaled(t, in, 0.5f), inner), 3.0f); });
    tape->backward(weighted_sum(*tape, x, testing::normal_values(kTensorElements, 7)));
    EXPECT_EQ(runs, recompute == Recompute::kFull ? 3 : 1);
    return gradient(0);
  };
  const Values kept = pass(Recompute::kNone);
  EXPECT_EQ(pass(Recompute::kFull), kept);
}

TEST_F(RecomputeTest, EvaluationRunsASegmentOnceAndKeepsNothing) {
  TapeOptions options;
  options.mode = TapeMode::kEvaluation;
  const auto tape = this->tape(Recompute::kFull, std::move(options));
  const Var x = tape->recompute(leaf(*tape, parameters_[0]), four_times);
  EXPECT_LT(x.slot, 0);
  EXPECT_EQ(host_.arena().used_bytes(), kTensorBytes);
}

TEST_F(RecomputeTest, UsesOfASegmentThatThrowsOrIsAbandonedAreGivenBack) {
  {
    int runs = 0;
    const auto tape = this->tape(Recompute::kFull);
    const Var x = tape->recompute(leaf(*tape, parameters_[0]), [&](Tape& t, Var in) {
      leaf(t, parameters_[1]);
      if (++runs == 2) throw ContractError("out of memory, say");
      return scaled(t, in, 2.0f);
    });
    EXPECT_EQ(parameters_[1].pending_uses, 1);
    EXPECT_THROW(tape->backward(weighted_sum(*tape, x, Values(kTensorElements, 1.0f))), ContractError);
  }
  {
    const auto tape = this->tape(Recompute::kFull);
    tape->recompute(leaf(*tape, parameters_[0]), four_times);
  }
  for (int index : {0, 1}) EXPECT_EQ(parameters_[index].pending_uses, 0);
  EXPECT_EQ(host_.arena().used_bytes(), 0u);
}

TEST_F(RecomputeTest, RefusesWhatTheSecondRunWouldLose) {
  const auto tape = this->tape(Recompute::kFull);
  const Var x = leaf(*tape, parameters_[0]), other = leaf(*tape, parameters_[1]);
  EXPECT_EQ(testing::error_of([&] { tape->recompute(x, [&](Tape& t, Var) { return scaled(t, other, 2.0f); }); }),
            "[tape.recompute] a segment must read no value that takes a gradient but its input; op gelu of layer '' "
            "reads another");
  const Var same = tape->recompute(x, [](Tape&, Var in) { return in; });
  EXPECT_EQ(testing::error_of([&] { tape->backward(weighted_sum(*tape, same, Values(kTensorElements, 1.0f))); }),
            "[tape.recompute] a segment must return a value that its own ops made");
  EXPECT_EQ(testing::error_of([&] {
              tape->recompute(leaf(*tape, *square_), [&](Tape& t, Var in) {
                return linear_cross_entropy(t, in, *square_, host_.tensor(std::vector<int32_t>{0, 1, 2}), 2).sum;
              });
            }),
            "[linear_cross_entropy] writes gradients as it goes: it must not be part of a segment that is run twice");
}

}  // namespace
}  // namespace mantissa
