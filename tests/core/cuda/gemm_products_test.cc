// Calls of cuBLASLt, and that its products are right.
#include <cmath>
#include <thread>

#include "tests/core/cuda/gemm_products.h"

namespace mantissa::cuda {
namespace {

TEST_F(GemmProducts, EveryTransposeDTypeBiasAndMode) {
  GemmDevice device(library_, "");
  expect_right_in_all_forms(device, {5, 7, 3}, 0);
  expect_right_in_all_forms(device, {16, 8, 24}, 0);
  expect_right_in_all_forms(device, {1, 1, 1}, 0);
  expect_right_in_all_forms(device, {1, 9, 4}, 0);
  expect_right_in_all_forms(device, {9, 1, 4}, 0);
}

TEST_F(GemmProducts, MisalignedOperandsAreTakenAsTheyLie) {
  GemmDevice device(library_, "");
  expect_right_in_all_forms(device, {5, 7, 3}, 1);
  EXPECT_TRUE(state().aligned_bias);
}

TEST_F(GemmProducts, OperandsThatTheLibraryRefusesAreStaged) {
  state().required_alignment = 16;
  GemmDevice device(library_, "");
  expect_right_in_all_forms(device, {5, 7, 3}, 0);
  expect_right_in_all_forms(device, {5, 7, 3}, 1);
  expect_right_in_all_forms(device, {16, 8, 24}, 1);
  EXPECT_TRUE(state().aligned_bias);
}

// Powers of two, so that quotients are exact, too.
TEST_F(GemmProducts, ScalesDivideTheProductAndNothingElse) {
  const auto expect_all_right = [&](GemmDevice& device) {
    for (const auto& [a, b] : std::initializer_list<std::pair<std::optional<double>, std::optional<double>>>{
             {0.25, std::nullopt}, {std::nullopt, 2.0}, {0.5, 0.125}}) {
      for (const DType dtype : kFloats) {
        for (const size_t offset : {0, 1}) {
          const Case of{.shape = {5, 7, 3, true, false}, .dtype = dtype, .offset = offset, .a_scale = a, .b_scale = b};
          expect_right(device, of);
          Case biased = of, sum = of;
          biased.c_dtype = dtype;
          biased.bias = DType::kF32;
          expect_right(device, biased);
          sum.mode = GradientMode::kAccumulate;
          expect_right(device, sum);
          expect_right(device, {.shape = of.shape, .dtype = dtype, .offset = offset});  // a separate problem
        }
      }
    }
  };
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  state().required_alignment = 16;  // forces staging
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  state().required_alignment = 1;
  state().duration_ms = {3, 1};  // products that are timed must not be added
  expect_all_right(*std::make_unique<GemmDevice>(library_, ""));
  EXPECT_EQ(state().last_algorithm(), 1);
}

TEST_F(GemmProducts, GeluIsAnEpilogue) {
  GemmDevice device(library_, "");
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const MatmulShape& shape : {MatmulShape{5, 16, 3}, MatmulShape{16, 8, 24}, MatmulShape{1, 8, 1}}) {
      EXPECT_EQ(expect_gelu_right(device, {.shape = shape, .dtype = dtype}), CUBLASLT_EPILOGUE_GELU_AUX);
      for (const DType bias : kFloats) {
        EXPECT_EQ(expect_gelu_right(device, {.shape = shape, .dtype = dtype, .bias = bias}),
                  CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
      }
      EXPECT_EQ(
          expect_gelu_right(device, {.shape = shape, .dtype = dtype, .activation = GemmActivation::kGeluGradient}),
          CUBLASLT_EPILOGUE_DGELU);
    }
  }
}

TEST_F(GemmProducts, GeluIsAKernelOfItsOwnWhereTheLibraryHasNone) {
  GemmDevice device(library_, ""), plain(library_, "", GeluFusion::kNo);
  for (const GemmActivation activation : {GemmActivation::kGelu, GemmActivation::kGeluGradient}) {
    const auto expect_separate = [&](GemmDevice& on, GeluCase of) {
      of.activation = activation;
      if (activation == GemmActivation::kGelu) of.bias = DType::kF32;
      EXPECT_EQ(expect_gelu_right(on, of), of.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    };
    expect_separate(device, {.form = GeluForm::kErf});
    expect_separate(device, {.dtype = DType::kF32});
    expect_separate(device, {.shape = {5, 12, 3}});  // misaligned rows of aux
    expect_separate(device, {.offset = 1});          // misaligned aux
    expect_separate(plain, {});
    state().refuses_gelu = true;
    GemmDevice refusing(library_, "");
    expect_separate(refusing, {});
    state().required_alignment = 16;  // forces staging
    GemmDevice staging(library_, "");
    expect_separate(staging, {.shape = {5, 8, 3}});
    state().required_alignment = 1;
    state().refuses_gelu = false;
  }
}

TEST_F(GemmProducts, ABiasIsRoundedToTheResultsDtype) {
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kBF16, {1, 1}, {1}), b = make_tensor(DType::kBF16, {1, 1}, {1}),
               c = make_tensor(DType::kBF16, {1, 1}, {NAN}), bias = make_tensor(DType::kF32, {1}, {0x1p-8 + 0x1p-20});
  multiply(device, {.a = a, .b = b, .c = c, .bias = bias}, stream_);
  EXPECT_EQ(values_of(c, stream_), std::vector<double>{1.0}) << "the last bit of the bias would decide the tie";
}

TEST_F(GemmProducts, EachOperandsAlignmentIsTold) {
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kBF16, {8, 8}, whole_numbers(64, 1), 4),
               b = make_tensor(DType::kBF16, {8, 8}, whole_numbers(64, 2), 1),
               c = make_tensor(DType::kF32, {8, 8}, {}, 1);
  multiply(device, {.a = a, .b = b, .c = c}, stream_);
  EXPECT_EQ(state().alignments, (std::vector<uint32_t>{2, 8, 4, 4}));  // the library's A is our b
  EXPECT_EQ(values_of(c, stream_), reference::matmul(whole_numbers(64, 1), whole_numbers(64, 2), {8, 8, 8}));
}

TEST_F(GemmProducts, PartialSumsStayInFp32AndTheWorkspaceIsAllowed) {
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(state().reduction_schemes, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_EQ(state().workspace_bytes, CudaStream::kGemmWorkspaceBytes);
}

TEST_F(GemmProducts, Tf32OnlyWhereItIsAskedForAndOnlyForFp32) {
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F);
  expect_right(device, {.fp32_math = Fp32Math::kTf32});
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F_FAST_TF32);
  expect_right(device, {.dtype = DType::kBF16, .fp32_math = Fp32Math::kTf32});
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F);
}

TEST_F(GemmProducts, SeveralThreadsWithAStreamEach) {
  state().duration_ms = {0, 0};
  GemmDevice device(library_, folder_.file("choices.txt"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, &device, i] {
      CudaStream stream(std::make_shared<DeviceMemory>(0), device_properties(0));
      for (int64_t n = 1; n <= 8; ++n) {
        const std::vector<double> values(static_cast<size_t>(n), i + 1.0);
        const Tensor a = make_tensor(DType::kF32, {1, 1}, {2}), b = make_tensor(DType::kF32, {1, n}, values);
        const Tensor c = make_tensor(DType::kF32, {1, n}, values), bias = make_tensor(DType::kF32, {n}, values);
        multiply(device, {.a = a, .b = b, .c = c, .bias = bias}, stream);
        EXPECT_EQ(values_of(c, stream), std::vector<double>(static_cast<size_t>(n), 3 * (i + 1.0)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GemmProducts, ErrorsNameTheProduct) {
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kBF16, {2, 3}, whole_numbers(6, 1)), b = make_tensor(DType::kBF16, {3, 4}, {});
  const GemmArgs args{.a = a, .b = b, .c = make_tensor(DType::kF32, {2, 4}, {})};
  state().required_alignment = 64;  // more than staging offers
  EXPECT_EQ(
      error_of([&] { multiply(device, args, stream_); }),
      "[gemm] cuBLASLt has no algorithm for 2 x 4 x 3 (M x N x K), bf16 -> fp32, epilogue none, rows of a, b and c "
      "3, 4 and 4 elements apart, addresses multiples of 16, 16 and 16 bytes");
  GemmDevice another(library_, "");
  state().heuristic_status = CUBLAS_STATUS_INTERNAL_ERROR;
  EXPECT_EQ(error_of([&] {
              multiply(another, args, stream_);
            }).find("[gemm] cublasLtMatmulAlgoGetHeuristic failed with CUBLAS_STATUS_INTERNAL_ERROR for 2 x 4 x 3"),
            0u);
  GemmArgs wrong = args;
  wrong.b = a;
  EXPECT_NE(error_of([&] { multiply(another, wrong, stream_); }).find("[gemm] b must have shape"), std::string::npos);
}

}  // namespace
}  // namespace mantissa::cuda
