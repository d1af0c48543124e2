// Products of 8-bit codes.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/core/kernels/gemm/gemm_codes_units.h"
#include "tests/core/kernels/gemm/gemm_problem.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/testing/values.h"

namespace mantissa::kernel_test {
namespace {

// ---- Products of codes (native) against products of the encoded numbers, which the same device multiplies as bf16
// (emulated).
//
// Bound of the difference, for a sum of exact products p:
//   Emulated: fp32 sums, each addition off by at most one unit in the last place: k * 2^-23 * sum |p|.
//   Native: compute capability 8.9 and 9.0 add the 32 products of an instruction to their accumulator with about 14
//   bits. All are aligned to the largest one and cut off 13 bits below its leading bit, and so is the result (measured
//   by DeepSeek-V3's authors, technical report 2024, section 3.3.2). With A the accumulator, an instruction is off by
//   at most
//       2^-13 * (33 * max(|p|, |A before|) + |A after|).
//   Without fast accumulation, as requested here, sums of 128 products go to fp32 registers and A restarts at 0.
//   Devices with more bits, including the emulated GPU, are within the same bound.
// A scale costs two more roundings, and a 16-bit c its own.

constexpr double kUnitEpsilon = 0x1p-13;
constexpr int64_t kInstruction = 32, kPromotion = 128;

using Layout = BlockScaleLayout;

// A matrix of representable numbers, times powers of two if its blocks have scales.
struct Codes {
  Format format;
  Shape shape;
  std::vector<uint8_t> codes;
  std::vector<double> values;
  std::optional<Layout> layout;
  std::vector<int> exponents{};  // of block scales, padding included

  Codes(Format of, Shape extents, uint64_t seed, std::optional<Layout> blocks = {})
      : format(of), shape(extents), layout(blocks) {
    if (layout) {
      for (int64_t i = 0; i < block_scale_count(*layout, shape[0], shape[1]); ++i) {
        exponents.push_back(static_cast<int>((i * 5 + i / 7) % 7) - 10);
      }
    }
    for (const float value : testing::normal_values(extents.numel(), seed, 30.0f)) {
      const auto code = static_cast<uint8_t>(encode(format, value, Saturation::kYes));
      const auto index = static_cast<int64_t>(codes.size());
      codes.push_back(code);
      values.push_back(std::ldexp(decode(format, code), exponent(index / shape[1], index % shape[1])));
    }
  }
  size_t scale_index(int64_t row, int64_t column) const {
    return static_cast<size_t>(block_scale_index(*layout, shape[0], shape[1], row, column / block_length(*layout)));
  }
  int exponent(int64_t row, int64_t column) const { return layout ? exponents[scale_index(row, column)] : 0; }
  // The block scales; undefined if there are none. The scale at index `nan` is NaN.
  Tensor as_scales(std::optional<size_t> nan = {}) const {
    if (!layout) return {};
    const PlacementScope placement(Placement::kAligned);  // a contract of block scales
    if (*layout == Layout::kMicroTiles) {
      std::vector<uint8_t> e8m0;
      for (const int exponent : exponents) e8m0.push_back(static_cast<uint8_t>(exponent + 127));
      if (nan) e8m0[*nan] = 0xff;
      const Tensor scales = make_unwritten(DType::kU8, {static_cast<int64_t>(e8m0.size())});
      write_bytes(scales, e8m0.data());
      return scales;
    }
    std::vector<float> scales;
    for (const int exponent : exponents) scales.push_back(std::ldexp(1.0f, exponent));
    if (nan) scales[*nan] = NAN;
    return make_elements<float>(scales);
  }
  Tensor as_codes() const {
    const Tensor tensor = make_unwritten(DType::kU8, shape);
    write_bytes(tensor, codes.data());
    return tensor;
  }
  Tensor as_values() const { return make_tensor(DType::kBF16, shape, values); }
};

struct Bound {
  double native = 0.0, emulated = 0.0;
};

// The bound for the sum of row i of a times row j of b.
Bound bound_of(const Codes& a, const Codes& b, int64_t i, int64_t j) {
  const int64_t k = a.shape[1];
  Bound bound;
  double magnitude = 0.0;
  for (int64_t chunk = 0; chunk < k; chunk += kPromotion) {
    double sum = 0.0, error = 0.0;
    for (int64_t group = chunk; group < std::min(k, chunk + kPromotion); group += kInstruction) {
      const double before = std::abs(sum) + error;
      double largest = before;
      for (int64_t l = group; l < std::min(k, group + kInstruction); ++l) {
        const double p = a.values[static_cast<size_t>(i * k + l)] * b.values[static_cast<size_t>(j * k + l)];
        sum += p;
        magnitude += std::abs(p);
        largest = std::max(largest, std::abs(p));
      }
      error += kUnitEpsilon * (33.0 * largest + std::abs(sum) + error);
    }
    bound.native += error;
  }
  const double in_fp32 = static_cast<double>(k) * 0x1p-23 * magnitude;
  bound.native += in_fp32;
  bound.emulated = in_fp32;
  return bound;
}

struct CodeProduct {
  int64_t m, n, k;
  Format a_format, b_format;
  DType c_dtype = DType::kF32;
  bool scaled = false;
  bool biased = false;
  GradientMode mode = GradientMode::kWrite;
  std::optional<Layout> a_layout{}, b_layout{};
};

// c = a b^T, with the block scales that a and b have.
GemmArgs product_of(const Codes& a, const Codes& b, DType c_dtype = DType::kF32) {
  return {.a = a.as_codes(),
          .b = b.as_codes(),
          .c = make_unwritten(c_dtype, {a.shape[0], b.shape[0]}),
          .trans_b = Transpose::kYes,
          .a_format = a.format,
          .b_format = b.format,
          .a_block_scales = a.as_scales(),
          .b_block_scales = b.as_scales(),
          .a_layout = a.layout.value_or(Layout::kRowBlocks128),
          .b_layout = b.layout.value_or(Layout::kRowBlocks128)};
}

constexpr float kScaleA = 0.37f, kScaleB = 11.3f;

// Compares the product of codes with the product of values of the same operands.
void expect_native_is_emulated(const CodeProduct& of) {
  SCOPED_TRACE(fmt::format(
      "{} x {} x {}, {} * {} -> {}{}{}{}{}", of.m, of.n, of.k, info(of.a_format).name, info(of.b_format).name,
      of.c_dtype, of.scaled ? ", scaled" : "", of.biased ? ", with bias" : "",
      of.mode == GradientMode::kAccumulate ? ", accumulated" : "",
      of.a_layout ? fmt::format(", blocks {} * {}", static_cast<int>(*of.a_layout), static_cast<int>(*of.b_layout))
                  : ""));
  const Codes a(of.a_format, {of.m, of.k}, 1, of.a_layout), b(of.b_format, {of.n, of.k}, 2, of.b_layout);
  const std::vector<float> before = testing::normal_values(of.m * of.n, 3, 100.0f),
                           bias = testing::normal_values(of.n, 4);
  GemmArgs native = product_of(a, b, of.c_dtype);
  native.c = make_tensor(of.c_dtype, {of.m, of.n}, {before.begin(), before.end()});
  if (of.biased) native.bias = make_tensor(of.c_dtype, {of.n}, {bias.begin(), bias.end()});
  if (of.scaled) native.a_scale = make_elements<float>({kScaleA}), native.b_scale = make_elements<float>({kScaleB});
  native.mode = of.mode;
  GemmArgs emulated = native;
  emulated.a = a.as_values(), emulated.b = b.as_values();
  emulated.a_block_scales = emulated.b_block_scales = Tensor();
  emulated.c = make_tensor(DType::kF32, {of.m, of.n}, {before.begin(), before.end()});
  run(native);
  run(emulated);
  const std::vector<double> found = values_of(native.c), expected = values_of(emulated.c);
  const double divisor = of.scaled ? double{kScaleA} * double{kScaleB} : 1.0;
  for (int64_t i = 0; i < of.m; ++i) {
    for (int64_t j = 0; j < of.n; ++j) {
      const auto at = static_cast<size_t>(i * of.n + j);
      const Bound bound = bound_of(a, b, i, j);
      // Covers scales, the additions of c and bias, and the last rounding.
      const double magnitude = std::abs(expected[at]) + std::abs(static_cast<double>(before[at])) + 4.0;
      const double rest =
          8 * 0x1p-23 * magnitude + 0.5 * info(format_of(of.c_dtype)).epsilon * (std::abs(found[at]) * 1.01);
      ASSERT_NEAR(found[at], expected[at], (bound.native + bound.emulated) / divisor + rest) << i << ", " << j;
    }
  }
}

constexpr std::pair<Format, Format> kPairs[] = {
    {Format::kE4M3, Format::kE4M3}, {Format::kE5M2, Format::kE4M3}, {Format::kE4M3, Format::kE5M2}};

TEST(GemmCodes, NativeProductsAreTheEmulatedOnes) {
  if (!multiplies_codes()) return;
  size_t index = 0;
  for (const auto& [m, n, k] :
       {std::tuple{16, 16, 16}, {16, 32, 48}, {48, 16, 128}, {128, 64, 144}, {64, 128, 1024}, {256, 144, 4096}}) {
    for (const auto& [a_format, b_format] : kPairs) {
      for (const DType c_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        if (!device_under_test().takes_case(index++)) continue;
        // Without scales, results exceed fp16's range.
        if (c_dtype != DType::kF16) expect_native_is_emulated({m, n, k, a_format, b_format, c_dtype});
        expect_native_is_emulated({m, n, k, a_format, b_format, c_dtype, true, c_dtype != DType::kF32});
      }
      if (!device_under_test().takes_case(index++)) continue;
      expect_native_is_emulated({m, n, k, a_format, b_format, DType::kF32, true, false, GradientMode::kAccumulate});
    }
  }
}

// The pairs of block-scale layouts of a and b that layers use and the device supports.
std::vector<std::pair<Layout, Layout>> block_pairs() {
  const Fp8GemmSupport support = device_under_test().backend().fp8_gemm_support();
  std::vector<std::pair<Layout, Layout>> pairs;
  if (takes(support, Scaling::kBlock)) {
    pairs = {{Layout::kRowBlocks128, Layout::kSquareBlocks128},
             {Layout::kRowBlocks128, Layout::kRowBlocks128},
             {Layout::kSquareBlocks128, Layout::kRowBlocks128}};
  }
  if (takes(support, Scaling::kMicro)) pairs.emplace_back(Layout::kMicroTiles, Layout::kMicroTiles);
  return pairs;
}

// Scales are powers of two and cost no rounding. The scaled numbers' bound holds, because promotion happens every
// 128 products, the size of a block.
TEST(GemmCodes, NativeProductsOfBlocksAreTheEmulatedOnes) {
  size_t index = 0;
  for (const auto& [a_layout, b_layout] : block_pairs()) {
    for (const auto& [m, n, k] : {std::tuple{128, 128, 128}, {256, 144, 384}, {144, 256, 1024}, {16, 128, 4096}}) {
      for (const auto& [a_format, b_format] : kPairs) {
        CodeProduct of{.m = m,
                       .n = n,
                       .k = k,
                       .a_format = a_format,
                       .b_format = b_format,
                       .a_layout = a_layout,
                       .b_layout = b_layout};
        for (const DType c_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
          if (!device_under_test().takes_case(index++)) continue;
          of.c_dtype = c_dtype, of.biased = c_dtype != DType::kF32;
          expect_native_is_emulated(of);
        }
        if (!device_under_test().takes_case(index++)) continue;
        of.c_dtype = DType::kF32, of.biased = false, of.mode = GradientMode::kAccumulate;
        expect_native_is_emulated(of);
      }
    }
  }
}

// A NaN scale of a block of a (as NaN and Inf elements give) must reach its rows and no others.
TEST(GemmCodes, ScalesOfBlocksThatAreNoNumbersStayVisible) {
  for (const auto& [a_layout, b_layout] : block_pairs()) {
    const Codes a(Format::kE4M3, {256, 256}, 1, a_layout), b(Format::kE4M3, {128, 256}, 2, b_layout);
    GemmArgs args = product_of(a, b);
    args.a_block_scales = a.as_scales(a.scale_index(130, 200));
    run(args);
    const std::vector<double> c = values_of(args.c);
    for (size_t i = 0; i < c.size(); ++i) {
      const auto row = static_cast<int64_t>(i / 128);
      ASSERT_EQ(std::isfinite(c[i]), a.scale_index(row, 200) != a.scale_index(130, 200))
          << static_cast<int>(a_layout) << " row " << row;
    }
  }
}

TEST(GemmCodes, ScalesOfBlocksAreReadWhenTheProductRuns) {
  for (const auto& [a_layout, b_layout] : block_pairs()) {
    const Codes a(Format::kE4M3, {16, 128}, 1, a_layout), b(Format::kE4M3, {128, 128}, 2, b_layout);
    Codes doubled = a;
    for (int& exponent : doubled.exponents) ++exponent;
    const GemmArgs args = product_of(a, b);
    RepeatedWork work([&] { run(args); });
    work.run();
    const std::vector<double> once = values_of(args.c);
    device_under_test().backend().copy(doubled.as_scales(), args.a_block_scales, device_under_test().stream());
    work.run();
    const std::vector<double> twice = values_of(args.c);
    for (size_t i = 0; i < once.size(); ++i) ASSERT_EQ(twice[i], 2.0 * once[i]);
  }
}

// One term is enough to show it; other rows and columns must not.
TEST(GemmCodes, WhatIsNotFiniteStaysVisible) {
  if (!multiplies_codes()) return;
  for (const auto& [format, code] : {std::pair(Format::kE4M3, 0x7f), {Format::kE5M2, 0x7c}, {Format::kE5M2, 0x7e}}) {
    Codes a(format, {16, 32}, 1);
    a.codes[33] = static_cast<uint8_t>(code);  // row 1
    const Codes b(Format::kE4M3, {16, 32}, 2);
    const GemmArgs args = product_of(a, b);
    run(args);
    const std::vector<double> c = values_of(args.c);
    for (size_t i = 0; i < c.size(); ++i) EXPECT_EQ(std::isfinite(c[i]), i / 16 != 1) << i;
  }
}

TEST(GemmCodes, ScalesAreReadWhenTheProductRuns) {
  if (!multiplies_codes()) return;
  const Codes a(Format::kE4M3, {16, 16}, 1), b(Format::kE4M3, {16, 16}, 2);
  GemmArgs args = product_of(a, b);
  args.a_scale = make_elements<float>({1.0f}), args.b_scale = make_elements<float>({1.0f});
  RepeatedWork work([&] { run(args); });
  work.run();
  const std::vector<double> once = values_of(args.c);
  for (const Tensor& scale : {args.a_scale, args.b_scale}) {
    const float four = 4.0f, one = 1.0f;
    write_bytes(scale, &four);
    work.run();
    const std::vector<double> divided = values_of(args.c);
    for (size_t i = 0; i < once.size(); ++i) ASSERT_EQ(divided[i], once[i] / 4.0);
    write_bytes(scale, &one);
  }
}

// ---- Rejected products of codes.

TEST(GemmCodes, RefuseWhatTheUnitsDoNotTake) {
  if (!multiplies_codes()) return;
  const Tensor codes = make_unwritten(DType::kU8, {16, 32}), c = make_unwritten(DType::kBF16, {16, 16});
  const GemmArgs good{.a = codes, .b = codes, .c = c, .trans_b = Transpose::kYes};
  const ExpectRefused expect_refused(good, "[gemm] ");
  expect_refused([](GemmArgs& args) { args.a_format = args.b_format = Format::kE5M2; },
                 "codes must be of e4m3 or e5m2");
  expect_refused([](GemmArgs& args) { args.a_format = Format::kBF16; }, "codes must be of e4m3 or e5m2");
  expect_refused(
      [](GemmArgs& args) {
        args.b = make_unwritten(DType::kBF16, {16, 32});
      },
      "a and b must have one floating dtype, or be codes, got u8 and bf16");
  expect_refused(
      [](GemmArgs& args) {
        args.b = make_unwritten(DType::kU8, {32, 16});
        args.trans_b = Transpose::kNo;
      },
      "codes must be stored as (M, K) and (N, K)");
  expect_refused(
      [](GemmArgs& args) {
        args.a = make_unwritten(DType::kU8, {8, 32});
        args.c = make_unwritten(DType::kBF16, {8, 16});
      },
      "M, N and K of codes must be multiples of 16, got 8, 16 and 32");
  expect_refused(
      [](GemmArgs& args) {
        args.c = make_unwritten(DType::kF32, {16, 16});
        args.bias = make_unwritten(DType::kF32, {16});
      },
      "a bias is added to a product of codes in 16 bits only");
  expect_refused(
      [](GemmArgs& args) {
        args.activation = GemmActivation::kGelu;
        args.aux = make_unwritten(DType::kBF16, {16, 16});
      },
      "a product of codes has no activation");
}

TEST(GemmCodes, RefuseScalesOfBlocksThatDoNotFit) {
  if (!multiplies_codes()) return;
  const PlacementScope placement(Placement::kAligned);
  const auto codes = [](int64_t rows, int64_t columns) { return make_unwritten(DType::kU8, {rows, columns}); };
  const auto scales = [](DType dtype, int64_t count) { return make_unwritten(dtype, {count}); };
  const GemmArgs good{.a = codes(16, 256),
                      .b = codes(128, 256),
                      .c = make_unwritten(DType::kBF16, {16, 128}),
                      .trans_b = Transpose::kYes,
                      .a_block_scales = scales(DType::kF32, 32),
                      .b_block_scales = scales(DType::kF32, 4),
                      .b_layout = BlockScaleLayout::kSquareBlocks128};
  const ExpectRefused expect_refused(good, "[gemm] ");
  expect_refused([](GemmArgs& args) { args.b_block_scales = {}; },
                 "a and b must both have block scales, or neither; got block scales of a only");
  expect_refused([](GemmArgs& args) { args.a_block_scales = {}; },
                 "a and b must both have block scales, or neither; got block scales of b only");
  expect_refused([](GemmArgs& args) { args.a_scale = make_elements<float>({1.0f}); },
                 "a product with block scales has no a_scale or b_scale");
  expect_refused([](GemmArgs& args) { args.a_layout = BlockScaleLayout::kMicroTiles; },
                 "a and b must have blocks of one length, got 32 and 128");
  expect_refused([](GemmArgs& args) { args.a_layout = BlockScaleLayout::kSquareBlocks128; },
                 "a and b must not both have square blocks");
  expect_refused([&](GemmArgs& args) { args.a_block_scales = scales(DType::kF32, 16); },
                 "a_block_scales must have shape (block_scale_count)=(32), got (16)");
  expect_refused([&](GemmArgs& args) { args.b_block_scales = scales(DType::kU8, 4); }, "b_block_scales must be fp32");
  expect_refused([&](GemmArgs& args) { args.a = codes(16, 144), args.b = codes(128, 144); },
                 "K must be a multiple of blocks of 128, got 144");
  expect_refused(
      [](GemmArgs& args) {
        args.a = make_unwritten(DType::kBF16, {16, 256}), args.b = make_unwritten(DType::kBF16, {128, 256});
      },
      "block scales belong to codes, got a and b in bf16");
  expect_refused(
      [](GemmArgs& args) {
        const Tensor longer = make_unwritten(DType::kF32, {36});
        args.a_block_scales =
            Tensor(std::make_shared<Storage>(longer.raw() + 4, 128, longer.device(), nullptr), DType::kF32, {32});
      },
      "a_block_scales must be aligned to 16 bytes");
}

}  // namespace
}  // namespace mantissa::kernel_test
