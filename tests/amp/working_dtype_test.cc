#include "amp/working_dtype.h"

#include <gtest/gtest.h>

#include "amp/autocast_policy.h"
#include "amp/autocast_scope.h"
#include "core/base/check.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

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
};

TEST_F(WorkingDtypeTest, MatricesAreLowAndVectorsFp32) {
  assign_working_dtypes(parameters_, AutocastPolicy(AutocastConfig{}), WorkingWeights::kLow);
  EXPECT_EQ(of("token_embedding.weight"), kBF16);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
  EXPECT_EQ(of("blocks.0.norm1.weight"), kF32);
  EXPECT_EQ(of("blocks.0.mlp.up.bias"), kF32);
}

TEST_F(WorkingDtypeTest, FollowsTheLayerThatUsesTheWeight) {
  AutocastConfig config;
  config.layers = {{"blocks.1.mlp", {}, kF32}, {"head", Op::kLinear, kF16}};
  parameters_.find("token_embedding.weight")->consumer = "head";  // tied
  assign_working_dtypes(parameters_, AutocastPolicy(config), WorkingWeights::kLow);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
  EXPECT_EQ(of("blocks.1.mlp.up.weight"), kF32);
  EXPECT_EQ(of("token_embedding.weight"), kF16);
}

TEST_F(WorkingDtypeTest, Fp32StorageOverwritesAnEarlierChoice) {
  const AutocastPolicy policy{AutocastConfig{}};
  assign_working_dtypes(parameters_, policy, WorkingWeights::kLow);
  assign_working_dtypes(parameters_, policy, WorkingWeights::kFp32);
  for (int index = 0; index < parameters_.size(); ++index) EXPECT_EQ(parameters_[index].working_dtype, kF32);
}

TEST_F(WorkingDtypeTest, AllIsFp32WithoutAutocast) {
  assign_working_dtypes(parameters_, AutocastPolicy(AutocastConfig{.enabled = false}), WorkingWeights::kLow);
  for (int index = 0; index < parameters_.size(); ++index) EXPECT_EQ(parameters_[index].working_dtype, kF32);
}

TEST_F(WorkingDtypeTest, AScopeOfTheThreadPlaysNoPart) {
  const AutocastScope scope({.enabled = false, .dtype = kF16});
  assign_working_dtypes(parameters_, AutocastPolicy(AutocastConfig{}), WorkingWeights::kLow);
  EXPECT_EQ(of("blocks.0.mlp.up.weight"), kBF16);
}

TEST_F(WorkingDtypeTest, RefusesBoundWeights) {
  parameters_[0].weight = Tensor(testing::host_storage(16 * 8 * 4), kF32, Shape{16, 8});
  EXPECT_THROW(assign_working_dtypes(parameters_, AutocastPolicy(AutocastConfig{}), WorkingWeights::kLow),
               ContractError);
}

}  // namespace
}  // namespace mantissa
