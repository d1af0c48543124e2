// Calls of cuBLASLt for operands of 8-bit codes, and that their products are right.
#include <cmath>

#include "core/tensor/format.h"
#include "tests/core/cuda/gemm_products.h"

namespace mantissa::cuda {
namespace {

// ---- Codes with a scale for the whole operand. The stand-in refuses what the real library's documentation excludes:
// layouts other than TN, sizes and addresses that are not multiples of 16, e5m2 on both sides.

Tensor make_codes(Format format, Shape shape, const std::vector<double>& values, size_t offset = 0) {
  const auto bytes = static_cast<size_t>(shape.numel());
  auto* const memory = static_cast<std::byte*>(allocate_device(bytes + offset));
  for (size_t i = 0; i < values.size(); ++i) {
    memory[offset + i] = static_cast<std::byte>(encode(format, static_cast<float>(values[i]), Saturation::kNo));
  }
  const auto storage = std::make_shared<Storage>(memory + offset, bytes, Device{Device::Kind::kCuda, 0},
                                                 [memory] { free_device(memory); });
  return Tensor(storage, DType::kU8, shape);
}

class GemmCodes : public GemmProducts {
 protected:
  struct CodeCase {
    int64_t m = 32, n = 16, k = 48;
    Format a = Format::kE4M3, b = Format::kE4M3;
    DType c_dtype = DType::kBF16;
    std::optional<DType> bias{};
    GradientMode mode = GradientMode::kWrite;
    std::optional<double> a_scale{}, b_scale{};
    size_t offset = 0;  // of the operands, in bytes
  };

  // Small whole numbers and powers of two, so that sums and quotients are exact.
  void expect_codes_right(GemmDevice& device, const CodeCase& of) {
    const auto numbers = [](int64_t rows, int64_t columns, int seed) {
      return whole_numbers(static_cast<size_t>(rows * columns), seed);
    };
    const std::vector<double> a = numbers(of.m, of.k, 1), b = numbers(of.n, of.k, 2), bias = numbers(1, of.n, 3),
                              before = numbers(of.m, of.n, 4);
    const bool accumulate = of.mode == GradientMode::kAccumulate;
    const GemmArgs args{
        .a = make_codes(of.a, {of.m, of.k}, a, of.offset),
        .b = make_codes(of.b, {of.n, of.k}, b, of.offset),
        .c = make_tensor(of.c_dtype, {of.m, of.n}, accumulate ? before : std::vector<double>(before.size(), NAN)),
        .bias = of.bias ? make_tensor(*of.bias, {of.n}, bias) : Tensor(),
        .a_scale = make_scale(of.a_scale),
        .b_scale = make_scale(of.b_scale),
        .trans_b = Transpose::kYes,
        .mode = of.mode,
        .a_format = of.a,
        .b_format = of.b};
    multiply(device, args, stream_);
    std::vector<double> expected = reference::matmul(
        a, b, {static_cast<size_t>(of.m), static_cast<size_t>(of.n), static_cast<size_t>(of.k), false, true});
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] /= of.a_scale.value_or(1.0) * of.b_scale.value_or(1.0);
      if (accumulate) expected[i] += before[i];
      if (of.bias) expected[i] += bias[i % static_cast<size_t>(of.n)];
    }
    EXPECT_EQ(values_of(args.c, stream_), expected)
        << info(of.a).name << " x " << info(of.b).name << " -> " << name(of.c_dtype);
  }
};

TEST_F(GemmCodes, EveryPairOfFormatsResultAndMode) {
  GemmDevice device(library_, "");
  for (const auto& [a, b] :
       {std::pair(Format::kE4M3, Format::kE4M3), {Format::kE5M2, Format::kE4M3}, {Format::kE4M3, Format::kE5M2}}) {
    for (const DType c_dtype : kFloats) {
      expect_codes_right(device, {.a = a, .b = b, .c_dtype = c_dtype});
      if (c_dtype == DType::kF32) continue;
      for (const DType bias : kFloats) {
        expect_codes_right(device, {.a = a, .b = b, .c_dtype = c_dtype, .bias = bias});
        EXPECT_EQ(state().epilogues.back(), CUBLASLT_EPILOGUE_BIAS);
      }
    }
    expect_codes_right(device, {.a = a, .b = b, .c_dtype = DType::kF32, .mode = GradientMode::kAccumulate});
  }
}

// The library's A is our b.
TEST_F(GemmCodes, EachOperandHasItsFormat) {
  GemmDevice device(library_, "");
  expect_codes_right(device, {.a = Format::kE5M2});
  EXPECT_EQ(state().code_types.back(), std::pair(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2));
  expect_codes_right(device, {.b = Format::kE5M2});
  EXPECT_EQ(state().code_types.back(), std::pair(CUDA_R_8F_E5M2, CUDA_R_8F_E4M3));
}

TEST_F(GemmCodes, SumsArePromoted) {
  GemmDevice device(library_, "");
  expect_codes_right(device, {});
  EXPECT_FALSE(state().fast_accumulation);
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(state().reduction_schemes, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
}

TEST_F(GemmCodes, ScalesDivideTheProductAndNothingElse) {
  const auto expect_all_right = [&](GemmDevice& device) {
    for (const auto& [a, b] : std::initializer_list<std::pair<std::optional<double>, std::optional<double>>>{
             {0.25, std::nullopt}, {std::nullopt, 2.0}, {0.5, 0.125}}) {
      expect_codes_right(device, {.a_scale = a, .b_scale = b});
      expect_codes_right(device, {.c_dtype = DType::kF16, .bias = DType::kF16, .a_scale = a, .b_scale = b});
      expect_codes_right(device,
                         {.c_dtype = DType::kF32, .mode = GradientMode::kAccumulate, .a_scale = a, .b_scale = b});
      expect_codes_right(device, {});  // a separate problem
    }
  };
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  state().duration_ms = {3, 1};  // products that are timed must not be added
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  EXPECT_EQ(state().last_algorithm(), 1);
}

// The product of codes is far beyond fp16's range; the product of the numbers they encode is not.
TEST_F(GemmCodes, ScalesDivideBeforeTheResultIsRounded) {
  GemmDevice device(library_, "");
  const std::vector<double> most(16 * 16, 448.0);
  const GemmArgs args{.a = make_codes(Format::kE4M3, {16, 16}, most),
                      .b = make_codes(Format::kE4M3, {16, 16}, most),
                      .c = make_tensor(DType::kF16, {16, 16}, {}),
                      .a_scale = make_scale(0x1p9),
                      .b_scale = make_scale(0x1p8),
                      .trans_b = Transpose::kYes};
  multiply(device, args, stream_);
  EXPECT_EQ(values_of(args.c, stream_), std::vector<double>(16 * 16, 24.5));
}

TEST_F(GemmCodes, OperandsAtOddAddressesAreStaged) {
  state().required_alignment = 16;
  GemmDevice device(library_, "");
  expect_codes_right(device, {.offset = 3});
  expect_codes_right(device, {.a_scale = 0.5, .b_scale = 4.0, .offset = 1});
}

TEST_F(GemmCodes, ErrorsNameTheFormatsAndTheWayOut) {
  GemmDevice device(library_, "");
  state().required_alignment = 64;  // more than staging offers
  const std::string error = error_of([&] { expect_codes_right(device, {.a = Format::kE5M2}); });
  EXPECT_NE(error.find("[gemm] cuBLASLt has no algorithm for 32 x 16 x 48 (M x N x K), e5m2 x e4m3 -> bf16"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("cuda.narrow_math=emulated"), std::string::npos) << error;
}

// ---- Codes with block scales. The stand-in reads scales from where the real library's documentation places them.

using Layout = BlockScaleLayout;

Tensor make_bytes(Shape shape, const std::vector<uint8_t>& bytes, size_t offset = 0) {
  auto* const memory = static_cast<std::byte*>(allocate_device(bytes.size() + offset));
  for (size_t i = 0; i < bytes.size(); ++i) memory[offset + i] = static_cast<std::byte>(bytes[i]);
  const auto storage = std::make_shared<Storage>(memory + offset, bytes.size(), Device{Device::Kind::kCuda, 0},
                                                 [memory] { free_device(memory); });
  return Tensor(storage, DType::kU8, shape);
}

// Codes of small whole numbers with power-of-two block scales, so that sums are exact.
struct Operand {
  Tensor codes, scales;
  std::vector<double> values;  // including scales

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

// Scales change their layout beyond 128 rows and where they are padded.
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

// One device multiplies with and without block scales at the same sizes.
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
  state().required_alignment = 64;  // more than staging offers
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
