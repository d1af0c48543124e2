// What cuBLASLt is asked for where operands are codes of 8 bits, and that the products are right. The library of these
// tests refuses what the real one's documentation does: other layouts than TN, sizes and addresses that are no
// multiples of 16, e5m2 on both sides.
#include "core/tensor/format.h"
#include "tests/core/cuda/gemm_products.h"

namespace mantissa::cuda {
namespace {

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

  // Small whole numbers and powers of two: the sums, and what is divided, are exact.
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
      expect_codes_right(device, {});  // a problem of its own
    }
  };
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  state().duration_ms = {3, 1};  // products that are measured are not added
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  EXPECT_EQ(state().last_algorithm(), 1);
}

// The product of codes is far beyond fp16, and that of what they stand for is not.
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
  state().required_alignment = 64;  // beyond what staging offers
  const std::string error = error_of([&] { expect_codes_right(device, {.a = Format::kE5M2}); });
  EXPECT_NE(error.find("[gemm] cuBLASLt has no algorithm for 32 x 16 x 48 (M x N x K), e5m2 x e4m3 -> bf16"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("cuda.narrow_math=emulated"), std::string::npos) << error;
}

}  // namespace
}  // namespace mantissa::cuda
