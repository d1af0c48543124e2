// Which operands are cold, by hand: a cache of 16 KiB and tensors of 8 KiB.
#include "tools/lab/advise/device/cache_model.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

constexpr double kCacheBytes = 16 * 1024;

Operand tensor(uintptr_t number) {
  return {.defined = true, .dtype = DType::kF32, .shape = {2048}, .address = (1 + number) * 8192};
}

KernelCall reads(std::vector<Operand> operands) {
  return {.phase = "forward", .op = "add", .variant = {}, .operands = std::move(operands), .run = {}};
}

TEST(CacheModel, ATensorIsColdWhenMoreThanTheCacheWasTouchedSince) {
  StepCalls step;
  for (const uintptr_t number : {0, 0, 1, 0, 1, 2, 0}) step.calls.push_back(reads({tensor(number)}));
  // The step before ended with 1, 2, 0. Of what came since, the tensor itself counts as well.
  const std::vector<std::vector<bool>> expected = {{false}, {false}, {true}, {false}, {false}, {true}, {false}};
  EXPECT_EQ(cold_operands(step, kCacheBytes), expected);
}

TEST(CacheModel, NothingIsColdInACacheThatHoldsTheStep) {
  StepCalls step;
  for (uintptr_t number = 0; number < 10; ++number) step.calls.push_back(reads({tensor(number), Operand()}));
  for (const auto& call : cold_operands(step, 1e6)) EXPECT_EQ(call, (std::vector<bool>{false, false}));
  for (const auto& call : cold_operands(step, kCacheBytes)) EXPECT_EQ(call, (std::vector<bool>{true, false}));
}

TEST(CacheModel, APartOfATensorIsTheSameMemory) {
  StepCalls step;
  Operand half = tensor(0);
  half.shape = {1024};
  half.address += 4096;
  step.calls = {reads({tensor(0)}), reads({half}), reads({tensor(7)}), reads({tensor(8)}), reads({tensor(9)})};
  const auto cold = cold_operands(step, kCacheBytes);
  EXPECT_TRUE(cold[0][0]);
  EXPECT_FALSE(cold[1][0]);
}

TEST(CacheModel, ThisMachineHasALastLevel) { EXPECT_GT(last_level_cache_bytes(), 1e5); }

}  // namespace
}  // namespace mantissa
