// Which products of 8-bit operands are asked of cuBLASLt on which GPU.
#include "core/kernels/fp8_gemm_support.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

constexpr Fp8GemmSupport kEverySupport[] = {Fp8GemmSupport::kNone, Fp8GemmSupport::kTensorScaled,
                                            Fp8GemmSupport::kBlockScaled, Fp8GemmSupport::kMicroScaled,
                                            Fp8GemmSupport::kAll};

TEST(Fp8GemmSupport, FollowTheComputeCapabilityAndTheLibrary) {
  constexpr size_t kNewest = 130200;
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 0, kNewest), Fp8GemmSupport::kNone);
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 6, kNewest), Fp8GemmSupport::kNone);
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 9, kNewest), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, kNewest), Fp8GemmSupport::kBlockScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, 120900), Fp8GemmSupport::kBlockScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, 120899), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 0, kNewest), Fp8GemmSupport::kMicroScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 3, 120800), Fp8GemmSupport::kMicroScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 0, 120799), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(11, 0, kNewest), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(12, 0, kNewest), Fp8GemmSupport::kTensorScaled);
}

TEST(Fp8GemmSupport, TakeScalesOfTheirKind) {
  for (const Fp8GemmSupport support : kEverySupport) {
    const bool block = support == Fp8GemmSupport::kBlockScaled || support == Fp8GemmSupport::kAll,
               micro = support == Fp8GemmSupport::kMicroScaled || support == Fp8GemmSupport::kAll;
    EXPECT_EQ(takes(support, Scaling::kDelayed), support != Fp8GemmSupport::kNone);
    EXPECT_EQ(takes(support, Scaling::kCurrent), support != Fp8GemmSupport::kNone);
    EXPECT_EQ(takes(support, Scaling::kBlock), block);
    EXPECT_EQ(takes(support, Scaling::kMicro), micro);
    EXPECT_FALSE(takes(support, Scaling::kTwoLevel));
  }
}

TEST(Fp8GemmSupport, MultiplyOperandsWithBlocksOfOneKind) {
  for (const Scaling a : kAllScalings) {
    for (const Scaling b : kAllScalings) {
      const Fp8Gemm product{
          .a = {Format::kE5M2, a}, .b = {Format::kE4M3, b}, .m = 16, .n = 16, .k = 256, .c = DType::kF32};
      EXPECT_EQ(multiplies(Fp8GemmSupport::kAll, product),
                a != Scaling::kTwoLevel && b != Scaling::kTwoLevel && block_length(a) == block_length(b))
          << name(a) << " x " << name(b);
    }
  }
}

TEST(Fp8GemmSupport, DoNotMultiplyWhatTheLibraryRefuses) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const Fp8Gemm good{
        .a = {Format::kE4M3, scaling}, .b = {Format::kE4M3, scaling}, .m = 32, .n = 16, .k = 128, .has_bias = true};
    EXPECT_TRUE(multiplies(Fp8GemmSupport::kAll, good));
    const auto expect_refused = [&](auto&& change) {
      Fp8Gemm product = good;
      change(product);
      EXPECT_FALSE(multiplies(Fp8GemmSupport::kAll, product)) << name(scaling);
    };
    expect_refused([](Fp8Gemm& p) { p.a.format = p.b.format = Format::kE5M2; });
    expect_refused([](Fp8Gemm& p) { p.m = 24; });
    expect_refused([](Fp8Gemm& p) { p.n = 8; });
    expect_refused([](Fp8Gemm& p) { p.k = 136; });
    Fp8Gemm part_of_a_block = good;
    part_of_a_block.k = 144;
    EXPECT_EQ(multiplies(Fp8GemmSupport::kAll, part_of_a_block), block_length(scaling) == 0) << name(scaling);
    expect_refused([](Fp8Gemm& p) { p.c = DType::kF32; });
  }
}

}  // namespace
}  // namespace mantissa
