#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mantissa {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kIntegers[] = {DType::kI32, DType::kU8};

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(size_bytes(DType::kF32), 4);
  EXPECT_EQ(size_bytes(DType::kBF16), 2);
  EXPECT_EQ(size_bytes(DType::kF16), 2);
  EXPECT_EQ(size_bytes(DType::kI32), 4);
  EXPECT_EQ(size_bytes(DType::kU8), 1);
  EXPECT_EQ(fmt::format("{} {} {} {} {}", DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8),
            "fp32 bf16 fp16 i32 u8");
}

TEST(DTypeTest, ParsesFloatNamesOnly) {
  for (const DType dtype : kFloats) {
    EXPECT_TRUE(is_floating(dtype));
    EXPECT_EQ(parse_float_dtype(name(dtype)), dtype);
  }
  for (const DType dtype : kIntegers) {
    EXPECT_FALSE(is_floating(dtype));
    EXPECT_EQ(parse_float_dtype(name(dtype)), std::nullopt);
  }
  for (const char* text : {"", "bfloat16", "FP16", "fp16 "}) EXPECT_EQ(parse_float_dtype(text), std::nullopt) << text;
}

// Each limit is a value of the type, and the value beyond it is not.
TEST(DTypeTest, LimitsAreThoseOfTheScalarConversions) {
  for (const DType dtype : kFloats) {
    SCOPED_TRACE(name(dtype));
    const DTypeLimits limit = limits(dtype);
    dispatch(dtype, [&]<typename T>() {
      const auto round_trip = [](double x) {
        return static_cast<double>(to_float(from_float<T>(static_cast<float>(x))));
      };
      EXPECT_EQ(round_trip(limit.max), limit.max);
      EXPECT_EQ(round_trip(limit.min_normal), limit.min_normal);
      EXPECT_EQ(round_trip(limit.min_subnormal), limit.min_subnormal);
      EXPECT_EQ(round_trip(1.0 + limit.epsilon), 1.0 + limit.epsilon);
      EXPECT_EQ(limit.min_subnormal, limit.min_normal * limit.epsilon);  // 2^(emin - mantissa bits)
      EXPECT_EQ(round_trip(limit.min_subnormal / 2), 0.0);
      if (dtype != DType::kF32) {
        EXPECT_EQ(round_trip(1.0 + limit.epsilon / 2), 1.0);
        const auto ulp_of_max = std::ldexp(limit.epsilon, std::ilogb(limit.max));
        EXPECT_TRUE(std::isinf(round_trip(limit.max + ulp_of_max / 2)));
      }
    });
  }
  EXPECT_EQ(limits(DType::kF32).max, static_cast<double>(std::numeric_limits<float>::max()));
  for (const DType dtype : kIntegers) EXPECT_THROW(limits(dtype), ContractError);
}

TEST(DTypeTest, WidestOfTwo) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(widest(dtype, dtype), dtype);
    EXPECT_EQ(widest(dtype, DType::kF32), DType::kF32);
    EXPECT_EQ(widest(DType::kF32, dtype), DType::kF32);
  }
  EXPECT_EQ(widest(DType::kBF16, DType::kF16), DType::kF32);
  EXPECT_EQ(widest(DType::kF16, DType::kBF16), DType::kF32);
}

TEST(DTypeTest, DispatchCallsWithTheMatchingType) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(dispatch(dtype, [&]<typename T>() { return DTypeOf<T>::value; }), dtype);
  }
  for (const DType dtype : kIntegers) EXPECT_THROW(dispatch(dtype, [&]<typename T>() {}), ContractError);
}

}  // namespace
}  // namespace mantissa
