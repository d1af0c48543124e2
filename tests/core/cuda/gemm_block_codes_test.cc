// What cuBLASLt is asked for where blocks of codes have scales, and that the products are right: the library of these
// tests reads scales where the real one's documentation says that they lie.
#include <cmath>

#include "core/tensor/format.h"
#include "tests/core/cuda/gemm_products.h"

namespace mantissa::cuda {
namespace {

using Layout = BlockScaleLayout;

Tensor make_bytes(Shape shape, const std::vector<uint8_t>& bytes, size_t offset = 0) {
  auto* const memory = static_cast<std::byte*>(allocate_device(bytes.size() + offset));
  for (size_t i = 0; i < bytes.size(); ++i) memory[offset + i] = static_cast<std::byte>(bytes[i]);
  const auto storage = std::make_shared<Storage>(memory + offset, bytes.size(), Device{Device::Kind::kCuda, 0},
                                                 [memory] { free_device(memory); });
  return Tensor(storage, DType::kU8, shape);
}

// Codes of small whole numbers, and powers of two as scales of their blocks: sums are exact.
struct Operand {
  Tensor codes, scales;
  std::vector<double> values;  // with scales

  Operand(Format format, Layout layout, int64_t rows, int64_t columns, int seed, size_t offset = 0) {
    values = whole_numbers(static_cast<size_t>(rows * columns), seed);
    std::vector<uint8_t> bytes;
    for (const double value : values) {
      bytes.push_back(static_cast<uint8_t>(encode(format, static_cast<float>(value), Saturation::kNo)));
    }
    codes = make_bytes({rows, columns}, bytes, offset);
    const int64_t count = block_scale_count(layout, rows, columns);
    std::vector<int> exponents(static_cast<size_t>(count));
    for (size_t i = 0; i < exponents.size(); ++i) exponents[i] = static_cast<int>((i * 5 + i / 7) % 7) - 3;
    const bool micro = layout == Layout::kMicroTiles;
    std::vector<uint8_t> as_e8m0;
    std::vector<double> as_fp32;
    for (const int exponent : exponents) {
      as_e8m0.push_back(static_cast<uint8_t>(exponent + 127));
      as_fp32.push_back(std::ldexp(1.0, exponent));
    }
    scales = micro ? make_bytes({count}, as_e8m0) : make_tensor(DType::kF32, {count}, as_fp32);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t index = block_scale_index(layout, rows, columns, r, c / block_length(layout));
        values[static_cast<size_t>(r * columns + c)] *= as_fp32[static_cast<size_t>(index)];
      }
    }
  }
};

double rounded(DType dtype, double value) {
  double result = 0.0;
  dispatch(dtype, [&]<typename T>() { result = to_float(from_float<T>(static_cast<float>(value))); });
  return result;
}

class GemmBlockCodes : public GemmProducts {
 protected:
  struct BlockCase {
    Layout a_layout = Layout::kRowBlocks128, b_layout = Layout::kRowBlocks128;
    int64_t m = 32, n = 16, k = 256;
    Format a = Format::kE4M3, b = Format::kE4M3;
    DType c_dtype = DType::kF32;
    bool biased = false;
    GradientMode mode = GradientMode::kWrite;
    size_t offset = 0;  // of the codes, in bytes
  };

  void expect_right(GemmDevice& device, const BlockCase& of) {
    const Operand a(of.a, of.a_layout, of.m, of.k, 1, of.offset), b(of.b, of.b_layout, of.n, of.k, 2, of.offset);
    const auto bias = whole_numbers(static_cast<size_t>(of.n), 3),
               before = whole_numbers(static_cast<size_t>(of.m * of.n), 4);
    const bool accumulate = of.mode == GradientMode::kAccumulate;
    const GemmArgs args{
        .a = a.codes,
        .b = b.codes,
        .c = make_tensor(of.c_dtype, {of.m, of.n}, accumulate ? before : std::vector<double>(before.size(), NAN)),
        .bias = of.biased ? make_tensor(of.c_dtype, {of.n}, bias) : Tensor(),
        .trans_b = Transpose::kYes,
        .mode = of.mode,
        .a_format = of.a,
        .b_format = of.b,
        .a_block_scales = a.scales,
        .b_block_scales = b.scales,
        .a_layout = of.a_layout,
        .b_layout = of.b_layout};
    multiply(device, args, stream_);
    std::vector<double> expected = reference::matmul(
        a.values, b.values,
        {static_cast<size_t>(of.m), static_cast<size_t>(of.n), static_cast<size_t>(of.k), false, true});
    for (size_t i = 0; i < expected.size(); ++i) {
      if (accumulate) expected[i] += before[i];
      if (of.biased) expected[i] += bias[i % static_cast<size_t>(of.n)];
      expected[i] = rounded(of.c_dtype, expected[i]);
    }
    EXPECT_EQ(values_of(args.c, stream_), expected)
        << info(of.a).name << " x " << info(of.b).name << " -> " << name(of.c_dtype);
  }
};

constexpr std::pair<Layout, Layout> kPairs[] = {{Layout::kRowBlocks128, Layout::kRowBlocks128},
                                                {Layout::kRowBlocks128, Layout::kSquareBlocks128},
                                                {Layout::kSquareBlocks128, Layout::kRowBlocks128},
                                                {Layout::kMicroTiles, Layout::kMicroTiles}};

TEST_F(GemmBlockCodes, EveryPairOfLayoutsFormatsAndResults) {
  GemmDevice device(library_, "");
  for (const auto& [a_layout, b_layout] : kPairs) {
    const BlockCase pair{.a_layout = a_layout, .b_layout = b_layout};
    for (const auto& [a, b] :
         {std::pair(Format::kE4M3, Format::kE4M3), {Format::kE5M2, Format::kE4M3}, {Format::kE4M3, Format::kE5M2}}) {
      BlockCase of = pair;
      of.a = a, of.b = b;
      expect_right(device, of);
    }
    for (const DType c_dtype : {DType::kBF16, DType::kF16}) {
      for (const bool biased : {false, true}) {
        BlockCase of = pair;
        of.c_dtype = c_dtype, of.biased = biased;
        expect_right(device, of);
      }
    }
    BlockCase of = pair;
    of.mode = GradientMode::kAccumulate;
    expect_right(device, of);
  }
}

// Where scales lie is another matter beyond 128 rows, and where they are padded.
TEST_F(GemmBlockCodes, SizesFromAPartOfABlockToSeveral) {
  stream_.set_gemm_options({.selection = GemmSelection::kDeterministic});
  GemmDevice device(library_, "");
  for (const auto& [a_layout, b_layout] : kPairs) {
    for (const auto& [m, n, k] : {std::tuple{16, 16, 128}, {144, 272, 256}, {272, 16, 640}}) {
      expect_right(device, {.a_layout = a_layout, .b_layout = b_layout, .m = m, .n = n, .k = k});
    }
  }
}

// The library's A is our b.
TEST_F(GemmBlockCodes, EachOperandHasItsScaleMode) {
  GemmDevice device(library_, "");
  expect_right(device, {.b_layout = Layout::kSquareBlocks128});
  EXPECT_EQ(state().scale_modes.back(),
            std::pair(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
  expect_right(device, {.a_layout = Layout::kMicroTiles, .b_layout = Layout::kMicroTiles});
  EXPECT_EQ(state().scale_modes.back(),
            std::pair(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0));
  EXPECT_FALSE(state().fast_accumulation);
}

// One device has products with and without scales of blocks, of the same sizes.
TEST_F(GemmBlockCodes, ProductsOfOneSizeDoNotShareTheirPlan) {
  GemmDevice device(library_, "");
  state().duration_ms = {3, 1};
  for (int round = 0; round < 2; ++round) {
    for (const auto& [a_layout, b_layout] : kPairs) expect_right(device, {.a_layout = a_layout, .b_layout = b_layout});
  }
  EXPECT_EQ(state().heuristic_calls, 4);
}

TEST_F(GemmBlockCodes, CodesAtOddAddressesAreStaged) {
  state().required_alignment = 16;
  GemmDevice device(library_, "");
  for (const auto& [a_layout, b_layout] : kPairs) {
    expect_right(device, {.a_layout = a_layout, .b_layout = b_layout, .offset = 3});
  }
}

TEST_F(GemmBlockCodes, ErrorsNameTheBlocksAndTheWayOut) {
  GemmDevice device(library_, "");
  state().required_alignment = 64;  // beyond what staging offers
  const std::string error =
      error_of([&] { expect_right(device, {.b_layout = Layout::kSquareBlocks128, .a = Format::kE5M2}); });
  EXPECT_NE(error.find("[gemm] cuBLASLt has no algorithm for 32 x 16 x 256 (M x N x K), e5m2/1x128 x e4m3/128x128 -> "
                       "fp32"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("cuda.narrow_math=emulated"), std::string::npos) << error;
}

}  // namespace
}  // namespace mantissa::cuda
