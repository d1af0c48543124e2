#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/tensor/dtype.h"
#include "core/tensor/format.h"
#include "core/tensor/philox.h"
#include "tests/core/tensor/format_reference.h"

namespace mantissa {
namespace {

using testing::FormatDefinition;
using testing::FormatReference;
using testing::TopExponent;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Repeated here instead of read from info(): the table under test must not define its own test.
FormatDefinition definition(Format format) {
  switch (format) {
    case Format::kF32:
      return {8, 23, 127};
    case Format::kTF32:
      return {8, 10, 127};
    case Format::kBF16:
      return {8, 7, 127};
    case Format::kF16:
      return {5, 10, 15};
    case Format::kE4M3:
      return {4, 3, 7, TopExponent::kNumbersAndOneNan};
    case Format::kE5M2:
      return {5, 2, 15};
    case Format::kE2M1:
      return {2, 1, 1, TopExponent::kNumbers};
  }
  return {};
}

// The formats with few enough codes to visit all: every one but fp32.
class NarrowFormatTest : public ::testing::TestWithParam<Format> {
 protected:
  Format format() const { return GetParam(); }
  FormatReference reference_{definition(GetParam())};
};

uint32_t expected_code(const FormatReference& reference, TopExponent top, float value, Saturation saturation) {
  uint32_t code = reference.nearest(value);
  // The code after the maximum's is Inf, or e4m3's NaN.
  const bool saturates = saturation == Saturation::kYes || top == TopExponent::kNumbers;
  if (saturates && code == reference.finite_count()) --code;
  return std::signbit(value) ? code | reference.sign_bit() : code;
}

TEST_P(NarrowFormatTest, EveryCodeDecodesToItsValue) {
  uint32_t nan_count = 0;
  for (uint32_t code = 0; code < reference_.code_count(); ++code) {
    const uint32_t magnitude = code & ~reference_.sign_bit();
    const bool negative = (code & reference_.sign_bit()) != 0;
    const float value = decode(format(), code);
    ASSERT_EQ(std::signbit(value), negative) << code;
    if (magnitude < reference_.finite_count()) {
      ASSERT_EQ(static_cast<double>(std::fabs(value)), reference_.value(magnitude)) << code;
    } else if (info(format()).has_infinity && magnitude == reference_.finite_count()) {
      ASSERT_TRUE(std::isinf(value)) << code;
    } else {
      ASSERT_TRUE(std::isnan(value)) << code;
      ++nan_count;
    }
  }
  EXPECT_EQ(nan_count, info(format()).nan_count);
}

TEST_P(NarrowFormatTest, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < reference_.code_count(); ++code) {
    const float value = decode(format(), code);
    const uint32_t back = encode(format(), value, Saturation::kNo);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decode(format(), back))) << code;
      ASSERT_EQ(back & reference_.sign_bit(), code & reference_.sign_bit()) << code;
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

TEST_P(NarrowFormatTest, EncodesEveryValueAndMidpointAndTheirNeighbours) {
  for (const Saturation saturation : {Saturation::kNo, Saturation::kYes}) {
    for_each_boundary(reference_, [&](float value) {
      ASSERT_EQ(encode(format(), value, saturation),
                expected_code(reference_, definition(format()).top, value, saturation))
          << std::hexfloat << value << " saturation " << static_cast<int>(saturation);
    });
  }
}

TEST_P(NarrowFormatTest, EncodesRandomBitPatterns) {
  for (uint32_t block = 0; block < 50'000; ++block) {
    for (const uint32_t bits : philox(7, {block, 0, 0, 0})) {
      const auto value = std::bit_cast<float>(bits);
      const Saturation saturation = (bits & 1u) != 0 ? Saturation::kYes : Saturation::kNo;
      if (std::isnan(value)) {
        ASSERT_EQ(std::isnan(quantize(format(), value, saturation)), info(format()).nan_count > 0) << bits;
      } else {
        ASSERT_EQ(encode(format(), value, saturation),
                  expected_code(reference_, definition(format()).top, value, saturation))
            << bits;
      }
    }
  }
}

TEST_P(NarrowFormatTest, NanStaysNanWhateverItsPayloadWhereTheFormatHasOne) {
  // Payloads with bits only below the kept mantissa, only above it, or both; quiet and signalling.
  for (const uint32_t payload : {0x1u, 0x1fffu, 0x2000u, 0x3fffffu, 0x400000u, 0x400001u, 0x7fffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      for (const Saturation saturation : {Saturation::kNo, Saturation::kYes}) {
        const float result = quantize(format(), std::bit_cast<float>(sign | 0x7f800000u | payload), saturation);
        if (info(format()).nan_count == 0) {
          EXPECT_EQ(result, static_cast<float>(reference_.max())) << std::hex << payload;
          continue;
        }
        EXPECT_TRUE(std::isnan(result)) << std::hex << payload;
        EXPECT_EQ(std::signbit(result), sign != 0) << std::hex << payload;
      }
    }
  }
}

TEST_P(NarrowFormatTest, InfoAgreesWithTheDefinition) {
  const FormatInfo& f = info(format());
  const FormatDefinition d = definition(format());
  EXPECT_EQ(f.exponent_bits, d.exponent_bits);
  EXPECT_EQ(f.mantissa_bits, d.mantissa_bits);
  EXPECT_EQ(f.bias, d.bias);
  EXPECT_EQ(f.has_infinity, d.top == TopExponent::kInfinityAndNans);
  EXPECT_EQ(f.max, reference_.max());
  EXPECT_EQ(f.min_subnormal, reference_.value(1));
  EXPECT_EQ(f.min_normal, reference_.value(1u << d.mantissa_bits));
  const uint32_t one = reference_.nearest(1.0);
  EXPECT_EQ(reference_.value(one), 1.0);
  EXPECT_EQ(f.epsilon, reference_.value(one + 1) - 1.0);
}

TEST_P(NarrowFormatTest, RefusesCodesWithForeignBits) {
  EXPECT_NO_THROW(decode(format(), reference_.code_count() - 1));
  EXPECT_THROW(decode(format(), reference_.code_count()), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowFormatTest,
                         ::testing::Values(Format::kTF32, Format::kBF16, Format::kF16, Format::kE4M3, Format::kE5M2,
                                           Format::kE2M1),
                         [](const auto& test) { return std::string(mantissa::info(test.param).name); });

TEST(FormatTest, Fp32IsTheIdentity) {
  for (uint32_t block = 0; block < 50'000; ++block) {
    for (const uint32_t bits : philox(11, {block, 0, 0, 0})) {
      if (std::isnan(std::bit_cast<float>(bits))) continue;
      ASSERT_EQ(encode(Format::kF32, std::bit_cast<float>(bits), Saturation::kNo), bits);
      ASSERT_EQ(std::bit_cast<uint32_t>(decode(Format::kF32, bits)), bits);
    }
  }
  for (const uint32_t bits : {0u, 1u, 0x7fffffu, 0x800000u, 0x7f7fffffu, 0x7f800000u, 0x80000000u, 0xff800000u}) {
    EXPECT_EQ(encode(Format::kF32, std::bit_cast<float>(bits), Saturation::kNo), bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(decode(Format::kF32, bits)), bits);
  }
  EXPECT_TRUE(std::isnan(quantize(Format::kF32, std::bit_cast<float>(0x7f800001u), Saturation::kYes)));
  EXPECT_EQ(quantize(Format::kF32, kInfinity, Saturation::kYes), std::numeric_limits<float>::max());
  const FormatInfo& f = info(Format::kF32);
  EXPECT_EQ(f.max, static_cast<double>(std::numeric_limits<float>::max()));
  EXPECT_EQ(f.min_normal, static_cast<double>(std::numeric_limits<float>::min()));
  EXPECT_EQ(f.min_subnormal, static_cast<double>(std::numeric_limits<float>::denorm_min()));
  EXPECT_EQ(f.epsilon, static_cast<double>(std::numeric_limits<float>::epsilon()));
  EXPECT_EQ(f.nan_count, 2 * ((1u << 23) - 1));
}

TEST(FormatTest, OverflowOfTheEightBitFormats) {
  // e4m3: 464 lies half-way between 448 and 480, the next number in sequence. The tie goes to 448, the even code.
  EXPECT_EQ(quantize(Format::kE4M3, 464.0f, Saturation::kNo), 448.0f);
  EXPECT_TRUE(std::isnan(quantize(Format::kE4M3, std::nextafterf(464.0f, kInfinity), Saturation::kNo)));
  EXPECT_TRUE(std::isnan(quantize(Format::kE4M3, -kInfinity, Saturation::kNo)));
  EXPECT_EQ(quantize(Format::kE4M3, 1e30f, Saturation::kYes), 448.0f);
  EXPECT_EQ(quantize(Format::kE4M3, -kInfinity, Saturation::kYes), -448.0f);
  // e5m2: 61440 lies half-way between 57344 and 65536. The maximum's code is odd, so the tie goes to Inf.
  EXPECT_EQ(quantize(Format::kE5M2, std::nextafterf(61440.0f, 0.0f), Saturation::kNo), 57344.0f);
  EXPECT_EQ(quantize(Format::kE5M2, 61440.0f, Saturation::kNo), kInfinity);
  EXPECT_EQ(quantize(Format::kE5M2, -61440.0f, Saturation::kYes), -57344.0f);
  EXPECT_EQ(quantize(Format::kE5M2, kInfinity, Saturation::kYes), 57344.0f);
}

// --- dtype

// fp64 is a dtype without a Format: nothing rounds to it.
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kIntegers[] = {DType::kI32, DType::kU8};

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(size_bytes(DType::kF32), 4);
  EXPECT_EQ(size_bytes(DType::kBF16), 2);
  EXPECT_EQ(size_bytes(DType::kF16), 2);
  EXPECT_EQ(size_bytes(DType::kI32), 4);
  EXPECT_EQ(size_bytes(DType::kU8), 1);
  EXPECT_EQ(size_bytes(DType::kF64), 8);
  EXPECT_EQ(fmt::format("{} {} {} {} {}", DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8),
            "fp32 bf16 fp16 i32 u8");
}

TEST(DTypeTest, Fp64IsFloatingAndAbsorbsAllOthers) {
  EXPECT_TRUE(is_floating(DType::kF64));
  EXPECT_EQ(parse_float_dtype("fp64"), DType::kF64);
  EXPECT_EQ(name(DType::kF64), "fp64");
  EXPECT_THROW(format_of(DType::kF64), ContractError);
  EXPECT_EQ(wide_of(DType::kF64), DType::kF64);
  for (const DType dtype : kFloats) {
    EXPECT_EQ(widest(DType::kF64, dtype), DType::kF64);
    EXPECT_EQ(widest(dtype, DType::kF64), DType::kF64);
    EXPECT_EQ(widest(dtype, DType::kF32), DType::kF32);
    EXPECT_EQ(wide_of(dtype), DType::kF32);
  }
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
    const FormatInfo& limit = info(format_of(dtype));
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
  EXPECT_EQ(info(format_of(DType::kF32)).max, static_cast<double>(std::numeric_limits<float>::max()));
  for (const DType dtype : kIntegers) EXPECT_THROW(info(format_of(dtype)), ContractError);
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
