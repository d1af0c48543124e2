// Which products of 8-bit operands are asked of cuBLASLt on which GPU.
#include "core/kernels/narrow_units.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

constexpr NarrowUnits kEveryUnits[] = {NarrowUnits::kNone, NarrowUnits::kTensorScaled, NarrowUnits::kBlockScaled,
                                       NarrowUnits::kMicroScaled, NarrowUnits::kAll};

TEST(NarrowUnits, FollowTheComputeCapabilityAndTheLibrary) {
  constexpr size_t kNewest = 130200;
  EXPECT_EQ(cublaslt_narrow_units(8, 0, kNewest), NarrowUnits::kNone);
  EXPECT_EQ(cublaslt_narrow_units(8, 6, kNewest), NarrowUnits::kNone);
  EXPECT_EQ(cublaslt_narrow_units(8, 9, kNewest), NarrowUnits::kTensorScaled);
  EXPECT_EQ(cublaslt_narrow_units(9, 0, kNewest), NarrowUnits::kBlockScaled);
  EXPECT_EQ(cublaslt_narrow_units(9, 0, 120900), NarrowUnits::kBlockScaled);
  EXPECT_EQ(cublaslt_narrow_units(9, 0, 120899), NarrowUnits::kTensorScaled);
  EXPECT_EQ(cublaslt_narrow_units(10, 0, kNewest), NarrowUnits::kMicroScaled);
  EXPECT_EQ(cublaslt_narrow_units(10, 3, 120800), NarrowUnits::kMicroScaled);
  EXPECT_EQ(cublaslt_narrow_units(10, 0, 120799), NarrowUnits::kTensorScaled);
  EXPECT_EQ(cublaslt_narrow_units(11, 0, kNewest), NarrowUnits::kTensorScaled);
  EXPECT_EQ(cublaslt_narrow_units(12, 0, kNewest), NarrowUnits::kTensorScaled);
}

TEST(NarrowUnits, TakeScalesOfTheirKind) {
  for (const NarrowUnits units : kEveryUnits) {
    const bool block = units == NarrowUnits::kBlockScaled || units == NarrowUnits::kAll,
               micro = units == NarrowUnits::kMicroScaled || units == NarrowUnits::kAll;
    EXPECT_EQ(takes(units, Scaling::kDelayed), units != NarrowUnits::kNone);
    EXPECT_EQ(takes(units, Scaling::kCurrent), units != NarrowUnits::kNone);
    EXPECT_EQ(takes(units, Scaling::kBlock), block);
    EXPECT_EQ(takes(units, Scaling::kMicro), micro);
    EXPECT_FALSE(takes(units, Scaling::kTwoLevel));
  }
}

TEST(NarrowUnits, MultiplyOperandsWithBlocksOfOneKind) {
  for (const Scaling a : kAllScalings) {
    for (const Scaling b : kAllScalings) {
      const NarrowProduct product{
          .a = {Format::kE5M2, a}, .b = {Format::kE4M3, b}, .m = 16, .n = 16, .k = 256, .c = DType::kF32};
      EXPECT_EQ(multiplies(NarrowUnits::kAll, product),
                a != Scaling::kTwoLevel && b != Scaling::kTwoLevel && block_length(a) == block_length(b))
          << name(a) << " x " << name(b);
    }
  }
}

TEST(NarrowUnits, DoNotMultiplyWhatTheLibraryRefuses) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const NarrowProduct good{
        .a = {Format::kE4M3, scaling}, .b = {Format::kE4M3, scaling}, .m = 32, .n = 16, .k = 128, .has_bias = true};
    EXPECT_TRUE(multiplies(NarrowUnits::kAll, good));
    const auto expect_refused = [&](auto&& change) {
      NarrowProduct product = good;
      change(product);
      EXPECT_FALSE(multiplies(NarrowUnits::kAll, product)) << name(scaling);
    };
    expect_refused([](NarrowProduct& p) { p.a.format = p.b.format = Format::kE5M2; });
    expect_refused([](NarrowProduct& p) { p.m = 24; });
    expect_refused([](NarrowProduct& p) { p.n = 8; });
    expect_refused([](NarrowProduct& p) { p.k = 136; });
    NarrowProduct part_of_a_block = good;
    part_of_a_block.k = 144;
    EXPECT_EQ(multiplies(NarrowUnits::kAll, part_of_a_block), block_length(scaling) == 0) << name(scaling);
    expect_refused([](NarrowProduct& p) { p.c = DType::kF32; });
  }
}

}  // namespace
}  // namespace mantissa
