// What codes of eight bits stand for. How they are made is quantize()'s business: quantize_codes_test.cc.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/quant/narrow_format.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"

namespace mantissa::kernel_test {
namespace {

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2};

// All of them, again and again.
Tensor all_codes(int64_t n) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < n; ++i) codes.push_back(static_cast<uint8_t>(i * 7 % 256));
  return make_elements(codes);
}

// Codes of values as the format encodes them.
Tensor codes_of(const std::vector<float>& values, Format format, float scale) {
  std::vector<uint8_t> codes;
  for (const float value : values) {
    codes.push_back(
        static_cast<uint8_t>(encode(format, round_to(narrow_format(format), value * scale), Saturation::kNo)));
  }
  return make_elements(codes);
}

void expect_contract(DType dtype, int64_t n, Format format, float scale_value) {
  SCOPED_TRACE(fmt::format("{}, {} elements of {}, scale {}", info(format).name, n, dtype, scale_value));
  const Tensor codes = all_codes(n), scale = make_elements<float>({scale_value});
  const Tensor dst = make_unwritten(dtype, {n});
  run(FromCodesArgs{.codes = codes, .dst = dst, .format = format, .scale = scale});
  std::vector<double> quotients;
  for (const uint8_t code : elements_of<uint8_t>(codes)) {
    quotients.push_back(static_cast<double>(decode(format, code) / scale_value));
  }
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
        const Tensor codes = codes_of(stored(weight), format, scale_value);
        const Tensor gathered = make_unwritten(DType::kBF16, {rows, columns});
        run(FromCodesArgs{.codes = codes, .dst = gathered, .format = format, .scale = scale});
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
  const Tensor codes = all_codes(n), scale = make_elements<float>({5.5f});
  expect_same_bits_on_every_schedule([&] {
    const Tensor dst = make_unwritten(DType::kBF16, {n});
    run(FromCodesArgs{.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale});
    return std::vector<Tensor>{dst};
  });
}

// The scale is read when the kernel runs.
TEST(Codes, FollowTheScaleFromRunToRun) {
  const Tensor codes = codes_of(std::vector<float>(17, 3.0f), Format::kE4M3, 1.0f);
  const Tensor scale = make_elements<float>({1.0f}), dst = make_unwritten(DType::kF32, {17});
  RepeatedWork work([&] { run(FromCodesArgs{.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale}); });
  for (const float value : {1.0f, 4.0f, 0.5f}) {
    set_element(scale, 0, static_cast<double>(value));
    work.run();
    EXPECT_EQ(elements_of<float>(dst)[16], 3.0f / value);
  }
}

TEST(Codes, RefuseWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {4}, {1, 2, 3, 4}), scale = make_elements<float>({1.0f});
  const Tensor codes = make_unwritten(DType::kU8, {4});
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes.slice(0, 3), .dst = x, .scale = scale}); },
                        "[from_codes] codes must have 4 elements");
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes, .dst = x, .format = Format::kE2M1, .scale = scale}); },
                        "[from_codes] codes are e4m3 or e5m2, got e2m1");
  expect_contract_error([&] { run(FromCodesArgs{.codes = x, .dst = x, .scale = scale}); },
                        "[from_codes] codes must be u8");
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes, .dst = x, .scale = x}); },
                        "[from_codes] scale must have 1 elements");
}

}  // namespace
}  // namespace mantissa::kernel_test
