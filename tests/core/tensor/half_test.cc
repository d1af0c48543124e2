#include "core/tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/tensor/philox.h"
#include "tests/core/tensor/format_reference.h"

namespace mantissa {
namespace {

using testing::definition_of;
using testing::FormatReference;

template <typename T>
class HalfTest : public ::testing::Test {
 protected:
  uint16_t expected_bits(float value) const {
    const uint32_t code = reference_.nearest(value);  // the code after the maximum's is Inf
    return static_cast<uint16_t>(std::signbit(value) ? code | 0x8000u : code);
  }
  FormatReference reference_{definition_of<T>()};
};
using HalfTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, HalfTypes);

TYPED_TEST(HalfTest, EveryBitPatternDecodesToItsValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(TypeParam{static_cast<uint16_t>(bits)});
    const uint32_t magnitude = bits & 0x7fffu;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000u) << bits;
    if (magnitude < this->reference_.finite_count()) {
      ASSERT_EQ(static_cast<double>(std::fabs(value)), this->reference_.value(magnitude)) << bits;
    } else {
      ASSERT_EQ(std::isinf(value), magnitude == this->reference_.finite_count()) << bits;
      ASSERT_EQ(std::isnan(value), magnitude != this->reference_.finite_count()) << bits;
    }
  }
}

TYPED_TEST(HalfTest, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam half{static_cast<uint16_t>(bits)};
    const TypeParam back = from_float<TypeParam>(to_float(half));
    if (std::isnan(to_float(half))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000u, bits & 0x8000u) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TYPED_TEST(HalfTest, RoundsEveryValueAndMidpointAndTheirNeighbours) {
  for_each_boundary(this->reference_, [&](float value) {
    ASSERT_EQ(from_float<TypeParam>(value).bits, this->expected_bits(value)) << std::hexfloat << value;
  });
}

TYPED_TEST(HalfTest, RoundsRandomBitPatterns) {
  for (uint32_t block = 0; block < 100'000; ++block) {
    for (const uint32_t bits : philox(3, {block, 0, 0, 0})) {
      const auto value = std::bit_cast<float>(bits);
      const TypeParam half = from_float<TypeParam>(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(to_float(half))) << bits;
      } else {
        ASSERT_EQ(half.bits, this->expected_bits(value)) << bits;
      }
    }
  }
}

// A payload that lies wholly in the bits cut off must not leave Inf behind.
TYPED_TEST(HalfTest, NanStaysNanWhateverItsPayload) {
  for (const uint32_t payload : {0x1u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float result = to_float(from_float<TypeParam>(std::bit_cast<float>(sign | 0x7f800000u | payload)));
      EXPECT_TRUE(std::isnan(result)) << std::hex << payload;
      EXPECT_EQ(std::signbit(result), sign != 0) << std::hex << payload;
    }
  }
}

TEST(HalfTest, OverflowThresholds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_float<Float16>(std::nextafterf(65520.0f, 0.0f)).bits, 0x7bff);  // 65504
  EXPECT_EQ(from_float<Float16>(65520.0f).bits, 0x7c00);                         // Inf
  EXPECT_EQ(from_float<Float16>(0x1p-25f).bits, 0);  // half of the smallest subnormal: tie to even
  EXPECT_EQ(from_float<Float16>(std::nextafterf(0x1p-25f, infinity)).bits, 1);
  EXPECT_EQ(from_float<BFloat16>(std::nextafterf(0x1.ffp127f, 0.0f)).bits, 0x7f7f);
  EXPECT_EQ(from_float<BFloat16>(0x1.ffp127f).bits, 0x7f80);
}

}  // namespace
}  // namespace mantissa
