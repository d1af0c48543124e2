// Codes of matrices with block scales, and these scales in the order that products read, bit for bit against their
// contract.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/quantize_reference.h"

namespace mantissa::kernel_test {
namespace quantize_block_codes_test {

using testing::QuantizeReference;
using testing::ScaleOrder;

constexpr Format kCodeFormats[] = {Format::kE4M3, Format::kE5M2};

enum class Layouts : uint8_t { kPlain, kTransposed, kBoth };

// A supported combination: blocks lie along the rows of the codes.
struct Way {
  Scaling scaling;
  BlockAxis axis;
  Layouts layouts;
};
constexpr Way kWays[] = {{Scaling::kBlock, BlockAxis::kColumns, Layouts::kPlain},
                         {Scaling::kBlock, BlockAxis::kRows, Layouts::kTransposed},
                         {Scaling::kBlock, BlockAxis::kBoth, Layouts::kBoth},
                         {Scaling::kMicro, BlockAxis::kColumns, Layouts::kPlain},
                         {Scaling::kMicro, BlockAxis::kRows, Layouts::kTransposed}};

struct CodeCase {
  int64_t rows, columns;
  DType dtype;
  Format format;
  Way way;
};

BlockScaleLayout scale_layout(const Way& way) {
  if (way.scaling == Scaling::kMicro) return BlockScaleLayout::kMicroTiles;
  return way.axis == BlockAxis::kBoth ? BlockScaleLayout::kSquareBlocks128 : BlockScaleLayout::kRowBlocks128;
}

// A matrix of codes and its scales. (rows, columns) are those of src even if the codes are transposed.
struct Coded {
  Tensor codes, scales;
  ScaleOrder order;

  Coded() = default;
  Coded(const Way& way, int64_t rows, int64_t columns)
      : codes(make_unwritten(DType::kU8, {rows, columns})),
        order(testing::scale_order_reference(scale_layout(way), rows, columns)) {
    scales = make_unwritten(way.scaling == Scaling::kMicro ? DType::kU8 : DType::kF32, {order.total});
  }
};

struct Results {
  Coded plain, transposed;
};

Results coded(const Tensor& src, Format format, const Way& way, const Tensor& record = Tensor()) {
  const int64_t columns = src.shape().last(), rows = src.numel() / columns;
  Results results;
  if (way.layouts != Layouts::kTransposed) results.plain = Coded(way, rows, columns);
  if (way.layouts != Layouts::kPlain) results.transposed = Coded(way, columns, rows);
  run(QuantizeArgs{.src = src,
                   .format = {format, way.scaling},
                   .axis = way.axis,
                   .record = record,
                   .codes = results.plain.codes,
                   .transposed_codes = results.transposed.codes,
                   .code_scales = results.plain.scales,
                   .transposed_code_scales = results.transposed.scales});
  return results;
}

// The decoded scales. A padding byte of 0 reads as 2^-127.
std::vector<float> scales_of(const Coded& coded) {
  if (coded.scales.dtype() == DType::kF32) return elements_of<float>(coded.scales);
  std::vector<float> values;
  for (const uint8_t code : elements_of<uint8_t>(coded.scales)) {
    values.push_back(code == 0xff ? std::nanf("") : std::ldexp(1.0f, code - 127));
  }
  return values;
}

void expect_matrix(const Coded& coded, const QuantizeReference& expected,
                   const std::vector<std::optional<uint8_t>>& expected_codes, Format format, int64_t rows,
                   int64_t columns, bool transposed) {
  const std::vector<uint8_t> codes = elements_of<uint8_t>(coded.codes);
  const std::vector<float> scales = scales_of(coded);
  const float padding = coded.scales.dtype() == DType::kF32 ? 0.0f : 0x1p-127f;
  std::vector<float> expected_scales(scales.size(), padding);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto at = static_cast<size_t>(row * columns + column);
      const auto to = transposed ? static_cast<size_t>(column * rows + row) : at;
      if (expected_codes[at]) {
        ASSERT_EQ(codes[to], *expected_codes[at]) << "row " << row << ", column " << column;
      } else {  // either sign, any payload
        ASSERT_TRUE(std::isnan(decode(format, codes[to]))) << "row " << row << ", column " << column;
      }
      expected_scales[static_cast<size_t>(coded.order.place[to])] = expected.inverse_scales[at];
      const float value = decode(format, codes[to]) * scales[static_cast<size_t>(coded.order.place[to])];
      ASSERT_TRUE(value == expected.values[at] || (std::isnan(value) && std::isnan(expected.values[at])))
          << "row " << row << ", column " << column << ": " << value << ", not " << expected.values[at];
    }
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    ASSERT_TRUE(scales[i] == expected_scales[i] || (std::isnan(scales[i]) && std::isnan(expected_scales[i])))
        << "scale " << i << " of " << scales.size() << ": " << scales[i] << ", not " << expected_scales[i];
  }
}

void expect_contract(const std::vector<float>& values, const CodeCase& of) {
  const auto [rows, columns, dtype, format, way] = of;
  const QuantizeCase named{rows, columns, dtype, {format, way.scaling}, way.axis};
  SCOPED_TRACE(named.text());
  const Tensor src = tensor_of(dtype, {rows, columns}, values);
  const std::vector<float> read = stored(src);
  const QuantizeReference expected =
      testing::quantize_reference(read, rows, columns, {format, way.scaling}, way.axis, 1.0f);
  const auto expected_codes = testing::code_reference(read, format, expected.multipliers);

  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = 1});
  const Results results = coded(src, format, way, record);
  if (results.plain.codes.defined()) {
    expect_matrix(results.plain, expected, expected_codes, format, rows, columns, false);
  }
  if (results.transposed.codes.defined()) {
    SCOPED_TRACE("transposed");
    expect_matrix(results.transposed, expected, expected_codes, format, rows, columns, true);
  }
  const auto found = fetch_record<QuantizeRecord>(record);
  expect_amax(found, std::max(1u, expected.amax));
  EXPECT_EQ(found.non_finite, 5 + expected.non_finite);
}

TEST(QuantizeBlockCodes, KeepTheirContractForOddAndEvenSizes) {
  // Ends within a block and at a block's end, words of codes and single codes, more blocks than a tile of scales.
  constexpr int64_t kSizes[][2] = {{1, 1},     {3, 5},    {16, 16},   {33, 129}, {128, 32},
                                   {130, 133}, {5, 1100}, {132, 144}, {600, 4},  {12, 528}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const auto& [rows, columns] : kSizes) {
        const std::vector<float> values = spread_values(rows * columns, 21);
        for (const DType dtype : kFloatDTypes) {
          for (const Format format : kCodeFormats) {
            for (const Way& way : kWays) {
              if (device_under_test().takes_case(index++)) expect_contract(values, {rows, columns, dtype, format, way});
            }
          }
        }
      }
    }
  });
}

// Square blocks lie along the rows of both code matrices, so each can be requested alone.
TEST(QuantizeBlockCodes, OfSquareBlocksAreMadeInEitherLayout) {
  const int64_t rows = 144, columns = 272;
  const std::vector<float> values = spread_values(rows * columns, 5);
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const Layouts layouts : {Layouts::kPlain, Layouts::kTransposed}) {
      expect_contract(values,
                      {rows, columns, DType::kBF16, Format::kE4M3, {Scaling::kBlock, BlockAxis::kBoth, layouts}});
    }
  }
}

// From the smallest subnormal to the largest number, blocks of zeros, and blocks of a single magnitude.
TEST(QuantizeBlockCodes, KeepTheirContractForZerosAndExtremes) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    const int64_t rows = 36, columns = 132;
    const auto on_every_way = [&](const std::vector<float>& values) {
      for (const Format format : kCodeFormats) {
        for (const Way& way : kWays) expect_contract(values, {rows, columns, DType::kF32, format, way});
      }
    };
    std::vector<float> values(static_cast<size_t>(rows * columns), 0.0f);
    on_every_way(values);
    values[values.size() / 2] = -0.0f;
    values.front() = std::numeric_limits<float>::denorm_min();
    on_every_way(values);
    for (size_t i = 0; i < values.size(); ++i) {
      const int exponent = -149 + static_cast<int>(i / 16 % 277);
      values[i] = std::ldexp(i % 3 == 0 ? -1.0f : 1.75f, exponent) * (i % 5 == 0 ? 0.0f : 1.0f);
    }
    values.back() = std::numeric_limits<float>::max();
    on_every_way(values);
  }
}

// The codes and the scale of the whole block are NaN, and no others.
TEST(QuantizeBlockCodes, ShowWhatIsNotFinite) {
  const int64_t rows = 132, columns = 140;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  size_t index = 0;
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      std::vector<float> planted = spread_values(rows * columns, 33);
      for (const size_t place : {size_t{0}, size_t{777}, planted.size() - 1}) planted[place] = bad;
      for (const DType dtype : kFloatDTypes) {
        for (const Format format : kCodeFormats) {
          for (const Way& way : kWays) {
            if (device_under_test().takes_case(index++)) expect_contract(planted, {rows, columns, dtype, format, way});
          }
        }
      }
    }
  }
}

// A product of codes with their scales is one of the numbers in dst.
TEST(QuantizeBlockCodes, AgreeWithTheValuesOfEmulation) {
  const int64_t rows = 144, columns = 160;
  std::vector<float> values = spread_values(rows * columns, 4);
  // For magnitudes below 2^-126, dst is rounded to bf16.
  for (int64_t i = 0; i < 32 * columns; ++i) values[static_cast<size_t>(i)] *= 0x1p-120f;
  for (const Format format : kCodeFormats) {
    for (const Way& way : kWays) {
      const QuantizeCase named{rows, columns, DType::kF32, {format, way.scaling}, way.axis};
      SCOPED_TRACE(named.text());
      const Tensor src = tensor_of(DType::kF32, {rows, columns}, values),
                   dst = make_unwritten(DType::kBF16, {rows, columns});
      run(QuantizeArgs{.src = src, .dst = dst, .format = {format, way.scaling}, .axis = way.axis});
      const Results results = coded(src, format, way);
      const std::vector<BFloat16> rounded = elements_of<BFloat16>(dst);
      const bool transposed = way.layouts == Layouts::kTransposed;
      const Coded& found = transposed ? results.transposed : results.plain;
      const std::vector<uint8_t> codes = elements_of<uint8_t>(found.codes);
      const std::vector<float> scales = scales_of(found);
      for (int64_t i = 0; i < rows * columns; ++i) {
        const auto at = static_cast<size_t>(transposed ? i % columns * rows + i / columns : i);
        const float value = decode(format, codes[at]) * scales[static_cast<size_t>(found.order.place[at])];
        ASSERT_EQ(from_float<BFloat16>(value), rounded[static_cast<size_t>(i)]) << i;
      }
    }
  }
}

TEST(QuantizeBlockCodes, TheSameBitsOnEverySchedule) {
  const int64_t rows = 304, columns = device_under_test().large(2304) / 16 * 16;
  const std::vector<float> values = spread_values(rows * columns, 8);
  for (const Way& way : kWays) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor src = tensor_of(DType::kBF16, {rows, columns}, values), record = make_record(QuantizeRecord{});
      const Results results = coded(src, Format::kE4M3, way, record);
      std::vector<Tensor> tensors{record};
      for (const Coded& made : {results.plain, results.transposed}) {
        if (!made.codes.defined()) continue;
        tensors.push_back(made.codes);
        tensors.push_back(made.scales);
      }
      return tensors;
    });
  }
}

TEST(QuantizeBlockCodes, OfNoRowsAreNone) {
  const Tensor src = make_unwritten(DType::kF32, {0, 8}), codes = make_unwritten(DType::kU8, {0, 8}),
               scales = make_unwritten(DType::kU8, {0});
  EXPECT_NO_THROW(
      run(QuantizeArgs{.src = src, .format = {Format::kE4M3, Scaling::kMicro}, .codes = codes, .code_scales = scales}));
}

TEST(QuantizeBlockCodes, RefuseWhatDoesNotFit) {
  const Tensor src = make_unwritten(DType::kF32, {4, 8}), codes = make_unwritten(DType::kU8, {4, 8}),
               transposed = make_unwritten(DType::kU8, {8, 4}), scales = make_unwritten(DType::kF32, {4});
  const QuantizeArgs good{.src = src,
                          .format = {Format::kE4M3, Scaling::kBlock},
                          .axis = BlockAxis::kBoth,
                          .codes = codes,
                          .transposed_codes = transposed,
                          .code_scales = scales,
                          .transposed_code_scales = scales};
  EXPECT_NO_THROW(run(good));
  const ExpectRefused expect_refused(good, "[quantize] ");
  expect_refused([](QuantizeArgs& args) { args.axis = BlockAxis::kColumns; },
                 "block transposed_codes need blocks within a column (axis kRows), got kColumns");
  expect_refused([](QuantizeArgs& args) { args.axis = BlockAxis::kRows; },
                 "block codes need blocks within a row (axis kColumns), got kRows");
  expect_refused([](QuantizeArgs& args) { args.format.scaling = Scaling::kMicro; },
                 "mxfp8 codes have blocks within a row or a column (axis kColumns or kRows), got kBoth");
  expect_refused(
      [](QuantizeArgs& args) {
        args.format = {Format::kE2M1, Scaling::kTwoLevel};
      },
      "nvfp4 scaling makes no codes of 8 bits");
  expect_refused([](QuantizeArgs& args) { args.code_scales = Tensor(); }, "code_scales must be given");
  expect_refused([](QuantizeArgs& args) { args.transposed_code_scales = Tensor(); },
                 "transposed_code_scales must be given");
  expect_refused([](QuantizeArgs& args) { args.codes = Tensor(); }, "code_scales go with their codes");
  expect_refused([](QuantizeArgs& args) { args.transposed_codes = Tensor(); },
                 "transposed_code_scales go with their codes");
  expect_refused([](QuantizeArgs& args) { args.code_scales = make_unwritten(DType::kU8, {4}); },
                 "code_scales must be fp32, got u8");
  expect_refused([](QuantizeArgs& args) { args.code_scales = make_unwritten(DType::kF32, {1}); },
                 "code_scales must have shape (block_scale_count)=(4), got (1)");
  expect_refused(
      [](QuantizeArgs& args) {
        args.transposed_code_scales = make_unwritten(DType::kF32, {2, 2});
      },
      "transposed_code_scales must have shape (block_scale_count)=(4), got (2, 2)");
  expect_refused([](QuantizeArgs& args) { args.scale = make_elements<float>({1.0f}); },
                 "block scaling has not a tensor's scale");
  expect_refused([](QuantizeArgs& args) { args.stochastic = {.elements_per_sample = 8, .step = make_indices({1})}; },
                 "codes are rounded to nearest");
  expect_refused(
      [](QuantizeArgs& args) {
        args.dst = make_unwritten(DType::kBF16, {4, 8});
      },
      "dst and codes were both given");
}

TEST(QuantizeBlockCodes, RefuseScalesThatDoNotFitMxfp8) {
  const Tensor src = make_unwritten(DType::kF32, {4, 8}), transposed = make_unwritten(DType::kU8, {8, 4}),
               tile = make_unwritten(DType::kU8, {512});
  const QuantizeArgs good{.src = src,
                          .format = {Format::kE5M2, Scaling::kMicro},
                          .axis = BlockAxis::kRows,
                          .transposed_codes = transposed,
                          .transposed_code_scales = tile};
  EXPECT_NO_THROW(run(good));
  const ExpectRefused expect_refused(good, "[quantize] ");
  expect_refused([](auto& args) { args.transposed_code_scales = make_unwritten(DType::kF32, {512}); },
                 "transposed_code_scales must be u8, got fp32");
  expect_refused([](auto& args) { args.transposed_code_scales = make_unwritten(DType::kU8, {8}); },
                 "transposed_code_scales must have shape (block_scale_count)=(512), got (8)");
}

}  // namespace quantize_block_codes_test
}  // namespace mantissa::kernel_test
