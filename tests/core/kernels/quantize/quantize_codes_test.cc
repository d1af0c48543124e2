// Codes of tensors with one scale, direct and transposed, bit for bit against their contract.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/quantize_reference.h"

namespace mantissa::kernel_test {
namespace {

// Both scalings are the same here, because the scale is given.
constexpr TensorFormat kCodeFormats[] = {{Format::kE4M3, Scaling::kDelayed}, {Format::kE5M2, Scaling::kCurrent}};

enum class Layouts : uint8_t { kPlain, kTransposed, kBoth };
constexpr Layouts kLayouts[] = {Layouts::kBoth, Layouts::kPlain, Layouts::kTransposed};

struct CodeCase {
  int64_t rows, columns;
  DType dtype;
  TensorFormat format;
  Layouts layouts = Layouts::kBoth;
};

// The sign and payload of a NaN depend on the device.
void expect_code(uint8_t actual, std::optional<uint8_t> expected, Format format, int64_t row, int64_t column) {
  if (expected) {
    ASSERT_EQ(actual, *expected) << "row " << row << ", column " << column;
  } else {
    ASSERT_TRUE(std::isnan(decode(format, actual))) << "row " << row << ", column " << column;
  }
}

void expect_contract(const std::vector<float>& values, const CodeCase& of) {
  const auto [rows, columns, dtype, format, layouts] = of;
  const QuantizeCase named{rows, columns, dtype, format, BlockAxis::kColumns};
  SCOPED_TRACE(named.text());
  const Tensor src = tensor_of(dtype, {rows, columns}, values);
  const std::vector<float> read = stored(src);
  const float scale = testing::reference_tensor_scale(format, largest_finite(read));
  const std::vector<std::optional<uint8_t>> expected = testing::code_reference(read, format.format, scale);

  const Tensor codes = layouts == Layouts::kTransposed ? Tensor() : make_unwritten(DType::kU8, {rows, columns});
  const Tensor transposed = layouts == Layouts::kPlain ? Tensor() : make_unwritten(DType::kU8, {columns, rows});
  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = 1});
  run(QuantizeArgs{.src = src,
                   .format = format,
                   .scale = make_elements<float>({scale}),
                   .record = record,
                   .codes = codes,
                   .transposed_codes = transposed});
  const auto plain_codes = codes.defined() ? elements_of<uint8_t>(codes) : std::vector<uint8_t>();
  const auto turned_codes = transposed.defined() ? elements_of<uint8_t>(transposed) : std::vector<uint8_t>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto at = static_cast<size_t>(row * columns + column), turned = static_cast<size_t>(column * rows + row);
      if (codes.defined()) expect_code(plain_codes[at], expected[at], format.format, row, column);
      if (transposed.defined()) expect_code(turned_codes[turned], expected[at], format.format, row, column);
    }
  }
  const QuantizeRecord found = fetch_record<QuantizeRecord>(record), wanted = record_of(read);
  expect_amax(found, std::max(1u, wanted.amax));
  EXPECT_EQ(found.non_finite, 5 + wanted.non_finite);
}

TEST(QuantizeCodes, KeepTheirContractForOddAndEvenSizes) {
  constexpr int64_t kSizes[][2] = {{1, 1}, {3, 5}, {16, 16}, {64, 128}, {33, 129}, {130, 260}, {5, 1100}, {176, 144}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const auto& [rows, columns] : kSizes) {
        const std::vector<float> values = spread_values(rows * columns, 21);
        for (const DType dtype : kFloatDTypes) {
          for (const TensorFormat format : kCodeFormats) {
            for (const Layouts layouts : kLayouts) {
              if (device_under_test().takes_case(index++)) {
                expect_contract(values, {rows, columns, dtype, format, layouts});
              }
            }
          }
        }
      }
    }
  });
}

// All fp32 magnitudes. NaN and Inf stay visible, and nothing else becomes NaN or Inf.
TEST(QuantizeCodes, KeepTheirContractForExtremes) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    const int64_t rows = 36, columns = 132;
    std::vector<float> values(static_cast<size_t>(rows * columns), 0.0f);
    for (const TensorFormat format : kCodeFormats) expect_contract(values, {rows, columns, DType::kF32, format});
    for (size_t i = 0; i < values.size(); ++i) {
      const int exponent = -149 + static_cast<int>(i % 277);
      values[i] = std::ldexp(i % 3 == 0 ? -1.0f : 1.75f, exponent) * (i % 5 == 0 ? 0.0f : 1.0f);
    }
    for (const TensorFormat format : kCodeFormats) expect_contract(values, {rows, columns, DType::kF32, format});
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {infinity, -infinity, std::nanf("")}) {
      std::vector<float> planted = spread_values(rows * columns, 33);
      for (const size_t place : {size_t{0}, size_t{777}, planted.size() - 1}) planted[place] = bad;
      for (const DType dtype : kFloatDTypes) {
        for (const TensorFormat format : kCodeFormats) expect_contract(planted, {rows, columns, dtype, format});
      }
    }
  }
}

// Decoding gives the values that dst would hold.
TEST(QuantizeCodes, AgreeWithTheValuesOfEmulation) {
  const int64_t rows = 48, columns = 160;
  const Tensor src = tensor_of(DType::kBF16, {rows, columns}, spread_values(rows * columns, 4)),
               scale = make_elements<float>({3.7f});
  for (const TensorFormat format : kCodeFormats) {
    const Tensor dst = make_unwritten(DType::kBF16, {rows, columns}), codes = make_unwritten(DType::kU8, dst.shape());
    run(QuantizeArgs{.src = src, .dst = dst, .format = format, .scale = scale});
    run(QuantizeArgs{.src = src, .format = format, .scale = scale, .codes = codes});
    const std::vector<double> values = values_of(dst);
    const std::vector<uint8_t> found = elements_of<uint8_t>(codes);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(decode(format.format, found[i]), values[i]) << i;
  }
}

TEST(QuantizeCodes, TheSameBitsOnEverySchedule) {
  const int64_t rows = 304, columns = device_under_test().large(2304) / 16 * 16;
  const std::vector<float> values = spread_values(rows * columns, 8);
  for (const TensorFormat format : kCodeFormats) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor codes = make_unwritten(DType::kU8, {rows, columns}),
                   transposed = make_unwritten(DType::kU8, {columns, rows}), record = make_record(QuantizeRecord{});
      run(QuantizeArgs{.src = tensor_of(DType::kBF16, {rows, columns}, values),
                       .format = format,
                       .scale = make_elements<float>({0.75f}),
                       .record = record,
                       .codes = codes,
                       .transposed_codes = transposed});
      return std::vector<Tensor>{codes, transposed, record};
    });
  }
}

TEST(QuantizeCodes, ReadTheScaleWhenTheyAreMade) {
  const std::vector<float> values = spread_values(6 * 20, 3);
  const Tensor src = tensor_of(DType::kF32, {6, 20}, values), codes = make_unwritten(DType::kU8, {6, 20}),
               scale = make_elements<float>({1.0f});
  RepeatedWork work([&] {
    run(QuantizeArgs{.src = src, .format = {Format::kE4M3, Scaling::kDelayed}, .scale = scale, .codes = codes});
  });
  for (const float next : {0.3f, 17.0f}) {
    write_bytes(scale, &next);
    work.run();
    const auto expected = testing::code_reference(stored(src), Format::kE4M3, next);
    const std::vector<uint8_t> found = elements_of<uint8_t>(codes);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << i;
  }
}

TEST(QuantizeCodes, RefuseWhatDoesNotFit) {
  const Tensor src = make_unwritten(DType::kF32, {4, 8}), codes = make_unwritten(DType::kU8, {4, 8}),
               transposed = make_unwritten(DType::kU8, {8, 4}), scale = make_elements<float>({1.0f});
  const QuantizeArgs good{.src = src,
                          .format = {Format::kE4M3, Scaling::kCurrent},
                          .scale = scale,
                          .codes = codes,
                          .transposed_codes = transposed};
  EXPECT_NO_THROW(run(good));
  const ExpectRefused expect_refused(good, "[quantize] ");
  expect_refused(
      [](QuantizeArgs& args) {
        args.dst = make_unwritten(DType::kBF16, {4, 8});
      },
      "dst and codes were both given");
  expect_refused(
      [](QuantizeArgs& args) {
        args.codes = make_unwritten(DType::kU8, {8, 4});
      },
      "codes must have shape (R, C)");
  expect_refused([](QuantizeArgs& args) { args.codes = make_unwritten(DType::kBF16, {4, 8}); }, "codes must be u8");
  expect_refused(
      [](QuantizeArgs& args) {
        args.transposed_codes = make_unwritten(DType::kU8, {4, 8});
      },
      "transposed_codes must have shape (C, R)");
  expect_refused([](QuantizeArgs& args) { args.code_scales = make_unwritten(DType::kF32, {4}); },
                 "code_scales go with their codes in block or mxfp8 scaling, and were given without");
  expect_refused([](QuantizeArgs& args) { args.stochastic = {.elements_per_sample = 8, .step = make_indices({1})}; },
                 "codes are rounded to nearest");
}

}  // namespace
}  // namespace mantissa::kernel_test
