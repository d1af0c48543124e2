// Tensors as codes of eight bits, and back, against what a quantiser makes of them.
#include <gtest/gtest.h>

#include "core/quant/narrow_codes.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/kernels.h"
#include "tests/core/kernels/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"

namespace mantissa::kernel_test {
namespace {

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of src, as QuantizeArgs has them.
void make_codes(const Tensor& src, const Tensor& codes, Format format, const Tensor& scale) {
  if (src.numel() == 0) return;
  const Shape shape{1, src.numel()};
  quantize({.src = src.view(shape), .format = {format, Scaling::kDelayed}, .scale = scale, .codes = codes.view(shape)});
}

// Whose largest values are beyond the maximum with a scale of 3, and whose smallest are lost.
std::vector<float> values_for(int64_t n) {
  std::vector<float> values = spread_values(n, 31);
  const float planted[] = {0.0f, -0.0f, 1e30f, -1e30f, 0x1p-20f, kInfinity, -kInfinity, NAN};
  for (size_t i = 0; i < std::size(planted) && i < values.size(); ++i) values[values.size() - 1 - i] = planted[i];
  return values;
}

void expect_contract(DType dtype, int64_t n, Format format, float scale_value) {
  SCOPED_TRACE(fmt::format("{}, {} elements of {}, scale {}", info(format).name, n, dtype, scale_value));
  const NarrowFormat narrow = narrow_format(format);
  const Tensor src = tensor_of(dtype, {n}, values_for(n)), scale = make_elements<float>({scale_value});
  const std::vector<float> read = stored(src);

  const Tensor codes = make_unwritten(DType::kU8, {n});
  make_codes(src, codes, format, scale);
  const std::vector<uint8_t> found = elements_of<uint8_t>(codes);
  for (size_t i = 0; i < found.size(); ++i) {
    const uint32_t expected = encode(format, round_to(narrow, read[i] * scale_value), Saturation::kNo);
    if (std::isnan(read[i])) {
      ASSERT_EQ(found[i] & 0x7f, 0x7f) << i;  // of the codes that are NaN; the sign says nothing
      continue;
    }
    ASSERT_EQ(found[i], expected) << i << ": " << read[i];
  }

  const Tensor dst = make_unwritten(dtype, {n});
  from_codes({.codes = codes, .dst = dst, .format = format, .scale = scale});
  std::vector<double> quotients;
  for (const uint8_t code : found) quotients.push_back(static_cast<double>(decode(format, code) / scale_value));
  const std::vector<float> expected = stored(make_tensor(dtype, {n}, quotients)), actual = stored(dst);
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST(Codes, KeepTheirContractForOddAndEvenSizes) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const Format format : kFormats) {
          for (const int64_t n : {0, 1, 15, 16, 17, 33, 127, 4099, 16389}) expect_contract(dtype, n, format, 3.0f);
        }
      }
    }
  });
}

TEST(Codes, KeepTheirContractForManyScales) {
  device_under_test().on_each_variant([] {
    for (const Format format : kFormats) {
      for (const float scale : {1.0f, 0x1p-40f, 0x1.234568p40f, 448.0f / 0.07f, 57344.0f / 1.3e-6f}) {
        expect_contract(DType::kBF16, 1001, format, scale);
      }
    }
  });
}

// What the ranks of a job count on: the operand of a product is the same whether the weight was rounded once, or went
// through codes in between.
TEST(Codes, LeaveTheOperandOfAProductAsItIs) {
  device_under_test().on_each_variant([] {
    for (const Format format : kFormats) {
      const int64_t rows = 37, columns = 64;
      const Tensor weight = tensor_of(DType::kBF16, {rows, columns}, spread_values(rows * columns, 7));
      for (const float scale_value : {0.37f, 17.0f, 448.0f / 0.083f, 1e6f}) {
        const Tensor scale = make_elements<float>({scale_value});
        const Tensor codes = make_unwritten(DType::kU8, {rows * columns});
        const Tensor gathered = make_unwritten(DType::kBF16, {rows, columns});
        make_codes(weight, codes, format, scale);
        from_codes({.codes = codes, .dst = gathered, .format = format, .scale = scale});
        const auto operand = [&](const Tensor& of) {
          std::vector<uint32_t> bits;
          for (const float value : stored(of)) {
            bits.push_back(std::bit_cast<uint32_t>(round_to(narrow_format(format), value * scale_value)));
          }
          return bits;
        };
        EXPECT_EQ(operand(gathered), operand(weight)) << info(format).name << ", scale " << scale_value;
      }
    }
  });
}

TEST(Codes, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(140001);
  const Tensor src = tensor_of(DType::kBF16, {n}, values_for(n)), scale = make_elements<float>({5.5f});
  expect_same_bits_on_every_schedule([&] {
    const Tensor codes = make_unwritten(DType::kU8, {n}), dst = make_unwritten(DType::kBF16, {n});
    make_codes(src, codes, Format::kE4M3, scale);
    from_codes({.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale});
    return std::vector<Tensor>{codes, dst};
  });
}

// The scale is read when the kernel runs.
TEST(Codes, FollowTheScaleFromRunToRun) {
  const Tensor src = make_tensor(DType::kF32, {17}, std::vector<double>(17, 3.0)), scale = make_elements<float>({1.0f});
  const Tensor codes = make_unwritten(DType::kU8, {17}), dst = make_unwritten(DType::kF32, {17});
  RepeatedWork work([&] {
    make_codes(src, codes, Format::kE4M3, scale);
    from_codes({.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale});
  });
  for (const float value : {1.0f, 4.0f, 0.5f}) {
    set_element(scale, 0, static_cast<double>(value));
    work.run();
    EXPECT_EQ(elements_of<uint8_t>(codes)[16], encode(Format::kE4M3, 3.0f * value, Saturation::kNo));
    EXPECT_EQ(elements_of<float>(dst)[16], 3.0f);
  }
}

TEST(Codes, RefuseWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {4}, {1, 2, 3, 4}), scale = make_elements<float>({1.0f});
  const Tensor codes = make_unwritten(DType::kU8, {4});
  expect_contract_error([&] { from_codes({.codes = codes.slice(0, 3), .dst = x, .scale = scale}); },
                        "[from_codes] codes must have 4 elements");
  expect_contract_error([&] { from_codes({.codes = codes, .dst = x, .format = Format::kE2M1, .scale = scale}); },
                        "[from_codes] codes are e4m3 or e5m2, got e2m1");
  expect_contract_error([&] { from_codes({.codes = x, .dst = x, .scale = scale}); }, "[from_codes] codes must be u8");
  expect_contract_error([&] { from_codes({.codes = codes, .dst = x, .scale = x}); },
                        "[from_codes] scale must have 1 elements");
}

}  // namespace
}  // namespace mantissa::kernel_test
