#include "core/cpu/fma_peak.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/base/check.h"

namespace mantissa::cpu {
namespace {

// No processor that this can run on does less than one multiply-add of 4 bytes every four cycles at 1 GHz, or more than
// four of 64 bytes a cycle at 6 GHz: a wrong count of operations or a burst that the compiler removed lies beyond.
TEST(FmaPeak, IsPlausible) {
  const FmaPeak peak = measure_fma_peak(DType::kF32, 1);
  EXPECT_GT(peak.flops, 0.5e9);
  EXPECT_LT(peak.flops, 4 * 32 * 6e9);
  EXPECT_GT(std::strlen(peak.instruction), 0u);
}

// bf16 may take the fp32 instruction, so it is slower only as far as the machine is busier; fp16 always takes it.
TEST(FmaPeak, OfSixteenBitsTakesTheBestInstruction) {
  const FmaPeak fp32 = measure_fma_peak(DType::kF32, 1), bf16 = measure_fma_peak(DType::kBF16, 1);
  EXPECT_GT(bf16.flops, 0.25 * fp32.flops);
  EXPECT_STREQ(measure_fma_peak(DType::kF16, 1).instruction, fp32.instruction);
}

TEST(FmaPeak, RefusesWhatHasNoPeak) {
  EXPECT_THROW(measure_fma_peak(DType::kI32, 1), ContractError);
  EXPECT_THROW(measure_fma_peak(DType::kF32, 0), ContractError);
}

}  // namespace
}  // namespace mantissa::cpu
