#include "amp/autocast_scope.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "amp/autocast_policy.h"
#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

class AutocastScopeTest : public ::testing::Test {
 protected:
  DType linear() const { return compute_dtype(policy_.at("x"), autocast_state(), Op::kLinear, kF32, kF32); }
  void TearDown() override {
    EXPECT_FALSE(autocast_state().enabled.has_value());
    EXPECT_FALSE(autocast_state().dtype.has_value());
  }
  AutocastPolicy policy_{AutocastConfig{.dtype = kBF16}};
};

TEST_F(AutocastScopeTest, SwitchesOffAndRestores) {
  EXPECT_EQ(linear(), kBF16);
  {
    const AutocastScope off({.enabled = false});
    EXPECT_EQ(linear(), kF32);
  }
  EXPECT_EQ(linear(), kBF16);
}

TEST_F(AutocastScopeTest, SwitchesOnWhatThePolicyLeavesOff) {
  const AutocastPolicy off(AutocastConfig{.enabled = false, .dtype = kBF16});
  const AutocastScope on({.enabled = true});
  EXPECT_EQ(compute_dtype(off.at("x"), autocast_state(), Op::kLinear, kF32, kF32), kBF16);
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

}  // namespace
}  // namespace mantissa
