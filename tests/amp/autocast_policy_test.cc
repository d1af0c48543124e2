// The dtype that each layer computes in, by rule; AutocastScope; the dtypes of working weights.
#include "amp/autocast_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "core/base/check.h"
#include "tests/core/tensor/host_storage.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;
using Rules = std::vector<PrecisionRule>;

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

// precision.compute: bf16, then the given rules.
Rules over_bf16(Rules rules) {
  rules.insert(rules.begin(), PrecisionRule{.format = kBF16});
  return rules;
}

// The dtype that an op computes in, outside of any scope.
DType dtype_of(const AutocastPolicy& policy, std::string_view layer, Op op, DType first = kF32, DType widest = kF32) {
  return compute_dtype(policy.at(layer), AutocastState{}, op, first, widest);
}

TEST(AutocastPolicyTest, DefaultsByOp) {
  const AutocastPolicy policy(Rules{{.format = kF16}});
  for (const Op op : {Op::kLinear, Op::kAttention}) EXPECT_EQ(dtype_of(policy, "x", op), kF16) << name(op);
  for (const Op op : {Op::kLayerNorm, Op::kRmsNorm, Op::kCrossEntropy, Op::kEmbedding}) {
    EXPECT_EQ(dtype_of(policy, "x", op, kF16, kF16), kF32) << name(op);
  }
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd, kF16, kF32), kF32);
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd, kF16, kF16), kF16);
  for (const Op op : {Op::kGelu, Op::kSwiglu, Op::kReluSquared, Op::kRope, Op::kDropout}) {
    EXPECT_EQ(dtype_of(policy, "x", op, kF16, kF32), kF16) << name(op);
    EXPECT_EQ(dtype_of(policy, "x", op, kF32, kF32), kF32) << name(op);
  }
}

TEST(AutocastPolicyTest, WithoutRulesEverythingIsFp32) {
  const AutocastPolicy policy(Rules{});
  for (int op = 0; op < kOpCount; ++op) EXPECT_EQ(dtype_of(policy, "x", static_cast<Op>(op)), kF32);
}

TEST(AutocastPolicyTest, SwitchedOffEveryOpTakesItsWidestInput) {
  Precision precision =
      AutocastPolicy(over_bf16({{.op = Op::kLinear, .format = kF16}, {.match = "*", .format = kF16}})).at("blocks.0");
  precision.enabled = false;
  const auto dtype = [&](int op, DType widest) {
    return compute_dtype(precision, AutocastState{}, static_cast<Op>(op), kBF16, widest);
  };
  for (int op = 0; op < kOpCount; ++op) {
    EXPECT_EQ(dtype(op, kF32), kF32);
    EXPECT_EQ(dtype(op, kBF16), kBF16);
  }
}

TEST(AutocastPolicyTest, RulesOfOps) {
  const AutocastPolicy policy(over_bf16({{.op = Op::kAttention, .format = kF32},
                                         {.op = Op::kLinear, .format = kF16},
                                         {.op = Op::kAdd, .format = CastRule::kLow},
                                         {.op = Op::kEmbedding, .format = CastRule::kAsGiven},
                                         {.op = Op::kGelu, .format = CastRule::kWidest}}));
  EXPECT_EQ(dtype_of(policy, "x", Op::kAttention, kBF16), kF32);
  EXPECT_EQ(dtype_of(policy, "x", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd), kBF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kEmbedding, kBF16), kBF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kGelu, kBF16, kF32), kF32);
  EXPECT_EQ(dtype_of(policy, "x", Op::kLayerNorm, kBF16), kF32);  // not named
}

TEST(AutocastPolicyTest, ARuleWithoutAnOpIsAboutLinearLayersAttentionAndWhatLowMeans) {
  const AutocastPolicy policy(over_bf16({{.op = Op::kGelu, .format = CastRule::kLow},
                                         {.op = Op::kAttention, .format = kF32},
                                         {.match = "blocks.*.mlp", .format = kF16}}));
  for (const char* layer : {"blocks.7.mlp", "blocks.7.mlp.up"}) {  // and the layers below
    for (const Op op : {Op::kLinear, Op::kAttention, Op::kGelu}) EXPECT_EQ(dtype_of(policy, layer, op), kF16);
    EXPECT_EQ(dtype_of(policy, layer, Op::kLayerNorm), kF32) << "not low";
  }
  EXPECT_EQ(dtype_of(policy, "blocks.7.attention", Op::kLinear), kBF16);
  EXPECT_EQ(dtype_of(policy, "blocks.7.attention", Op::kAttention), kF32);
  EXPECT_EQ(dtype_of(policy, "", Op::kLinear), kBF16);
}

TEST(AutocastPolicyTest, ARuleOfOneOpInSomeLayers) {
  const AutocastPolicy policy(over_bf16({{.match = "head", .op = Op::kLinear, .format = kF32},
                                         {.match = "blocks.0", .op = Op::kGelu, .format = CastRule::kFp32}}));
  EXPECT_EQ(dtype_of(policy, "head", Op::kLinear), kF32);
  EXPECT_EQ(dtype_of(policy, "head", Op::kAttention), kBF16);
  EXPECT_EQ(dtype_of(policy, "blocks.0.mlp", Op::kGelu, kBF16, kBF16), kF32);
  EXPECT_EQ(dtype_of(policy, "blocks.1.mlp", Op::kGelu, kBF16, kBF16), kBF16);
}

TEST(AutocastPolicyTest, TheLastMatchWinsHoweverSpecific) {
  Rules rules = {{.match = "blocks", .format = kBF16},
                 {.match = "blocks.*.mlp", .format = kF16},
                 {.match = "blocks.3.mlp", .format = kF32}};
  const AutocastPolicy policy(rules);
  EXPECT_EQ(dtype_of(policy, "blocks.3.mlp.up", Op::kLinear), kF32);
  EXPECT_EQ(dtype_of(policy, "blocks.2.mlp.up", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "blocks.3.attention", Op::kLinear), kBF16);
  for (const DType last : {kF16, kF32, kBF16}) {
    std::rotate(rules.begin(), rules.end() - 1, rules.end());
    rules.push_back({.match = "blocks.*", .format = last});
    EXPECT_EQ(dtype_of(AutocastPolicy(rules), "blocks.3.mlp.up", Op::kLinear), last);
    rules.pop_back();
  }
}

TEST(AutocastPolicyTest, OfEqualsTheLastWins) {
  Rules rules = {{.match = "blocks.1?", .format = kF16}, {.match = "blocks.?1", .format = kF32}};
  EXPECT_EQ(dtype_of(AutocastPolicy(rules), "blocks.11", Op::kLinear), kF32);
  std::swap(rules[0], rules[1]);
  EXPECT_EQ(dtype_of(AutocastPolicy(rules), "blocks.11", Op::kLinear), kF16);
  rules.assign(40, {.match = "blocks.11", .format = kF16});
  rules.back().format = kF32;
  EXPECT_EQ(dtype_of(AutocastPolicy(rules), "blocks.11", Op::kLinear), kF32);
}

TEST(AutocastPolicyTest, LowReplacesADtype) {
  const AutocastPolicy policy(over_bf16({{.op = Op::kLinear, .format = kF16},
                                         {.match = "head", .op = Op::kLinear, .format = kF32},
                                         {.match = "blocks.0", .op = Op::kLinear, .format = CastRule::kLow}}));
  EXPECT_EQ(dtype_of(policy, "blocks.1", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "blocks.0", Op::kLinear), kBF16);
  EXPECT_EQ(dtype_of(policy, "head", Op::kLinear), kF32);
}

TEST(AutocastPolicyTest, RulesWithAndWithoutAnOpReplaceEachOther) {
  const PrecisionRule of_op{.match = "blocks.*", .op = Op::kLinear, .format = kF16},
      of_layer{.match = "blocks.3.mlp", .format = kF32};
  const AutocastPolicy op_last(over_bf16({of_layer, of_op})), layer_last(over_bf16({of_op, of_layer}));
  EXPECT_EQ(dtype_of(op_last, "blocks.3.mlp", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(op_last, "blocks.3.mlp", Op::kAttention), kF32);
  EXPECT_EQ(dtype_of(layer_last, "blocks.3.mlp", Op::kLinear), kF32);
  EXPECT_EQ(dtype_of(layer_last, "blocks.2.mlp", Op::kLinear), kF16);
}

TEST(AutocastPolicyTest, Fp32SurvivesAScopeOfAnotherDtype) {
  const AutocastPolicy policy(over_bf16({{.op = Op::kAttention, .format = kF32}, {.match = "head", .format = kF32}}));
  const AutocastState scope{.dtype = kF16};
  EXPECT_EQ(compute_dtype(policy.at("blocks.0"), scope, Op::kLinear, kF32, kF32), kF16);
  EXPECT_EQ(compute_dtype(policy.at("blocks.0"), scope, Op::kAttention, kF32, kF32), kF32);
  EXPECT_EQ(compute_dtype(policy.at("head"), scope, Op::kLinear, kF32, kF32), kF32);
  EXPECT_EQ(compute_dtype(policy.at("head"), scope, Op::kLayerNorm, kF16, kF16), kF32);
}

TEST(AutocastPolicyTest, ReferencesStayValid) {
  const AutocastPolicy policy(over_bf16({{.match = "blocks.0", .format = kF16}}));
  const Precision* first = &policy.at("blocks.0");
  for (int layer = 0; layer < 1000; ++layer) policy.at("blocks." + std::to_string(layer));
  EXPECT_EQ(&policy.at("blocks.0"), first);
  EXPECT_EQ(first->low, kF16);
}

TEST(AutocastPolicyTest, ThreadsMayShareAPolicy) {
  const AutocastPolicy policy(over_bf16({{.match = "blocks.*.mlp", .format = kF16}}));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int layer = 0; layer < 500; ++layer) {
        const std::string path = "blocks." + std::to_string(layer) + (layer % 2 ? ".mlp" : ".attention");
        wrong[t] += policy.at(path).low != (layer % 2 ? kF16 : kBF16);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(AutocastPolicyTest, NamesPatternsThatMatchNothing) {
  const AutocastPolicy policy(
      over_bf16({{.match = "blocks.*.mpl", .format = kF16}, {.match = "head", .format = kF32}}));
  for (const char* path : {"", "blocks.0", "blocks.0.mlp", "head"}) policy.at(path);
  EXPECT_EQ(policy.unmatched_patterns(), std::vector<std::string>{"blocks.*.mpl"});
  EXPECT_TRUE(AutocastPolicy(over_bf16({})).unmatched_patterns().empty());
}

TEST(AutocastPolicyTest, RefusesInvalidRules) {
  EXPECT_EQ(error_of([] { AutocastPolicy policy(Rules{{.match = "head", .format = CastRule::kFp32}}); }),
            "[precision] rule {match: head, format: fp32}: this format needs an op; without one expected a dtype or a "
            "recipe");
}

class AutocastScopeTest : public ::testing::Test {
 protected:
  DType linear() const { return compute_dtype(policy_.at("x"), autocast_state(), Op::kLinear, kF32, kF32); }
  void TearDown() override {
    EXPECT_FALSE(autocast_state().enabled.has_value());
    EXPECT_FALSE(autocast_state().dtype.has_value());
  }
  AutocastPolicy policy_{Rules{{.format = kBF16}}};
};

TEST_F(AutocastScopeTest, SwitchesOffAndRestores) {
  EXPECT_EQ(linear(), kBF16);
  {
    const AutocastScope off({.enabled = false});
    EXPECT_EQ(linear(), kF32);
  }
  EXPECT_EQ(linear(), kBF16);
}

TEST_F(AutocastScopeTest, SwitchesOnWhatAPrecisionLeavesOff) {
  Precision off = policy_.at("x");
  off.enabled = false;
  EXPECT_EQ(compute_dtype(off, autocast_state(), Op::kLinear, kF32, kF32), kF32);
  const AutocastScope on({.enabled = true});
  EXPECT_EQ(compute_dtype(off, autocast_state(), Op::kLinear, kF32, kF32), kBF16);
}

TEST_F(AutocastScopeTest, ChangesTheDtype) {
  const AutocastScope fp16({.dtype = kF16});
  EXPECT_EQ(linear(), kF16);
  EXPECT_EQ(compute_dtype(policy_.at("x"), autocast_state(), Op::kLayerNorm, kF16, kF16), kF32);
}

TEST_F(AutocastScopeTest, NestsAndInheritsWhatIsNotNamed) {
  const AutocastScope fp16({.dtype = kF16});
  {
    const AutocastScope off({.enabled = false});
    EXPECT_EQ(linear(), kF32);
    {
      const AutocastScope dtype_only({.dtype = kBF16});
      EXPECT_EQ(linear(), kF32);  // still off
      const AutocastScope on({.enabled = true});
      EXPECT_EQ(linear(), kBF16);
    }
    EXPECT_EQ(linear(), kF32);
    const AutocastScope on({.enabled = true});
    EXPECT_EQ(linear(), kF16);  // the dtype of the outermost scope
  }
  EXPECT_EQ(linear(), kF16);
}

TEST_F(AutocastScopeTest, RestoresWhenAnExceptionPasses) {
  try {
    const AutocastScope off({.enabled = false, .dtype = kF16});
    throw std::runtime_error("passes through");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(linear(), kBF16);
}

TEST_F(AutocastScopeTest, OtherThreadsAreNotAffected) {
  const AutocastScope off({.enabled = false});
  DType outside = kF32, inside = kF32;
  std::thread([&] {
    outside = linear();
    const AutocastScope fp16({.dtype = kF16});
    inside = linear();
  }).join();
  EXPECT_EQ(outside, kBF16);
  EXPECT_EQ(inside, kF16);
  EXPECT_EQ(linear(), kF32);
}

TEST_F(AutocastScopeTest, RefusesOtherDtypesAndChangesNothing) {
  EXPECT_THROW(AutocastScope({.enabled = false, .dtype = DType::kI32}), ContractError);
  EXPECT_EQ(linear(), kBF16);
}

class WorkingDtypeTest : public ::testing::Test {
 protected:
  WorkingDtypeTest() {
    const Init normal{Init::Kind::kNormal, 0.02f};
    parameters_.add("token_embedding.weight", {16, 8}, normal);
    parameters_.add("blocks.0.norm1.weight", {8}, {Init::Kind::kOnes});
    parameters_.add("blocks.0.mlp.up.weight", {32, 8}, normal);
    parameters_.add("blocks.0.mlp.up.bias", {32}, {});
    parameters_.add("blocks.1.mlp.up.weight", {32, 8}, normal);
  }
  DType of(const char* name) { return parameters_.find(name)->working_dtype; }
  ParameterSet parameters_;
  const AutocastPolicy bf16_{Rules{{.format = kBF16}}};
};

TEST_F(WorkingDtypeTest, MatricesAreLowAndVectorsFp32) {
  assign_working_dtypes(parameters_, bf16_, WorkingWeights::kLow);
  EXPECT_EQ(of("token_embedding.weight"), kBF16);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
  EXPECT_EQ(of("blocks.0.norm1.weight"), kF32);
  EXPECT_EQ(of("blocks.0.mlp.up.bias"), kF32);
}

TEST_F(WorkingDtypeTest, FollowsTheLayerThatUsesTheWeight) {
  const Rules rules = {{.match = "blocks.1.mlp", .format = kF32}, {.match = "head", .op = Op::kLinear, .format = kF16}};
  parameters_.find("token_embedding.weight")->consumer = "head";  // tied
  assign_working_dtypes(parameters_, AutocastPolicy(over_bf16(rules)), WorkingWeights::kLow);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
  EXPECT_EQ(of("blocks.1.mlp.up.weight"), kF32);
  EXPECT_EQ(of("token_embedding.weight"), kF16);
}

TEST_F(WorkingDtypeTest, Fp32StorageOverwritesAnEarlierChoice) {
  assign_working_dtypes(parameters_, bf16_, WorkingWeights::kLow);
  assign_working_dtypes(parameters_, bf16_, WorkingWeights::kFp32);
  for (int index = 0; index < parameters_.size(); ++index) EXPECT_EQ(parameters_[index].working_dtype, kF32);
}

TEST_F(WorkingDtypeTest, AllIsFp32WhereLayersComputeInFp32) {
  assign_working_dtypes(parameters_, AutocastPolicy(Rules{{.format = kF32}}), WorkingWeights::kLow);
  for (int index = 0; index < parameters_.size(); ++index) EXPECT_EQ(parameters_[index].working_dtype, kF32);
}

TEST_F(WorkingDtypeTest, AScopeOfTheThreadPlaysNoPart) {
  const AutocastScope scope({.enabled = false, .dtype = kF16});
  assign_working_dtypes(parameters_, bf16_, WorkingWeights::kLow);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
}

TEST_F(WorkingDtypeTest, RefusesBoundWeights) {
  parameters_[0].weight = Tensor(testing::host_storage(16 * 8 * 4), kF32, Shape{16, 8});
  EXPECT_THROW(assign_working_dtypes(parameters_, bf16_, WorkingWeights::kLow), ContractError);
}

}  // namespace
}  // namespace mantissa
