// Everything between GemmArgs and cuBLASLt, on the emulated device with a library that computes what its descriptors
// say.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/gemm_multiply.h"
#include "core/cuda/runtime.h"
#include "tests/core/cuda/fake_cublaslt.h"
#include "tests/core/io/temp_folder.h"
#include "tests/reference/gelu.h"
#include "tests/reference/linear.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using fake_cublaslt::state;
using reference::MatmulShape;
using testing::error_of;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

// Small whole numbers: sums are exact in every dtype and order.
std::vector<double> whole_numbers(size_t n, int seed) {
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<double>((i * 7 + static_cast<size_t>(seed) * 3) % 5) - 2.0;
  return values;
}

// `offset` elements behind an aligned address, with guards around.
Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values, size_t offset = 0) {
  constexpr size_t kGuardBytes = 256;
  const auto element = static_cast<size_t>(size_bytes(dtype));
  const size_t bytes = static_cast<size_t>(shape.numel()) * element;
  auto* const memory = static_cast<std::byte*>(allocate_device(bytes + offset * element + 2 * kGuardBytes));
  auto* const data = memory + kGuardBytes + offset * element;
  for (size_t i = 0; i < kGuardBytes; ++i) data[bytes + i] = std::byte{0xa5};
  dispatch(dtype, [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i)
      reinterpret_cast<T*>(data)[i] = from_float<T>(static_cast<float>(values[i]));
  });
  const auto storage = std::make_shared<Storage>(data, bytes, Device{Device::Kind::kCuda, 0}, [memory, data, bytes] {
    for (size_t i = 0; i < kGuardBytes; ++i) EXPECT_EQ(data[bytes + i], std::byte{0xa5}) << "written beyond the end";
    free_device(memory);
  });
  return Tensor(storage, dtype, shape);
}

std::vector<double> values_of(const Tensor& tensor, CudaStream& stream) {
  stream.synchronize();
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(tensor.data<T>()[i]);
  });
  return values;
}

class GemmProducts : public ::testing::Test {
 protected:
  GemmProducts() : library_(fake_cublaslt::library()), stream_(0, device_properties(0)) {}

  struct Case {
    MatmulShape shape{5, 7, 3};
    DType dtype = DType::kF32, c_dtype = DType::kF32;
    std::optional<DType> bias{};
    GradientMode mode = GradientMode::kWrite;
    size_t offset = 0;  // in elements: of every operand
  };

  // Computes it and compares.
  void expect_right(GemmDevice& device, const Case& of) {
    const auto [shape, dtype, c_dtype, bias_dtype, mode, offset] = of;
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    const std::vector<double> a = whole_numbers(shape.m * shape.k, 1), b = whole_numbers(shape.k * shape.n, 2),
                              bias = whole_numbers(shape.n, 3), before = whole_numbers(shape.m * shape.n, 4);
    const bool accumulate = mode == GradientMode::kAccumulate;
    const GemmArgs args{
        .a = make_tensor(dtype, shape.trans_a ? Shape{k, m} : Shape{m, k}, a, offset),
        .b = make_tensor(dtype, shape.trans_b ? Shape{n, k} : Shape{k, n}, b, offset),
        .c = make_tensor(c_dtype, {m, n}, accumulate ? before : std::vector<double>(before.size(), NAN), offset),
        .bias = bias_dtype ? make_tensor(*bias_dtype, {n}, bias, offset) : Tensor(),
        .trans_a = shape.trans_a ? Transpose::kYes : Transpose::kNo,
        .trans_b = shape.trans_b ? Transpose::kYes : Transpose::kNo,
        .mode = mode};
    multiply(device, args, stream_);
    std::vector<double> expected = reference::matmul(a, b, shape);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += (accumulate ? before[i] : 0.0) + (bias_dtype ? bias[i % shape.n] : 0.0);
    }
    EXPECT_EQ(values_of(args.c, stream_), expected)
        << shape.m << "x" << shape.n << "x" << shape.k << " " << name(dtype) << " -> " << name(c_dtype) << ", offset "
        << offset << (shape.trans_a ? " a^T" : "") << (shape.trans_b ? " b^T" : "") << (accumulate ? " +=" : "");
  }

  void expect_right_in_all_forms(GemmDevice& device, MatmulShape shape, size_t offset) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        shape.trans_a = trans_a;
        shape.trans_b = trans_b;
        for (const DType dtype : kFloats) {
          for (const DType c_dtype : {dtype, DType::kF32}) {
            expect_right(device, {.shape = shape, .dtype = dtype, .c_dtype = c_dtype, .offset = offset});
            for (const DType bias : kFloats) {
              expect_right(device,
                           {.shape = shape, .dtype = dtype, .c_dtype = c_dtype, .bias = bias, .offset = offset});
            }
          }
          expect_right(device, {.shape = shape, .dtype = dtype, .mode = GradientMode::kAccumulate, .offset = offset});
        }
      }
    }
  }

  struct GeluCase {
    MatmulShape shape{5, 16, 3};
    DType dtype = DType::kBF16;
    std::optional<DType> bias{};
    GemmActivation activation = GemmActivation::kGelu;
    GeluForm form = GeluForm::kTanh;
    size_t offset = 0;  // in elements: of every operand
  };

  // Computes it and compares; the epilogue of the product that did it.
  cublasLtEpilogue_t expect_gelu_right(GemmDevice& device, const GeluCase& of) {
    const auto [shape, dtype, bias_dtype, activation, form, offset] = of;
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    const std::vector<double> a = whole_numbers(shape.m * shape.k, 1), b = whole_numbers(shape.k * shape.n, 2),
                              bias = whole_numbers(shape.n, 3), inputs = whole_numbers(shape.m * shape.n, 4),
                              unwritten(inputs.size(), NAN);
    const bool forward = activation == GemmActivation::kGelu;
    const GemmArgs args{.a = make_tensor(dtype, {m, k}, a, offset),
                        .b = make_tensor(dtype, {k, n}, b, offset),
                        .c = make_tensor(dtype, {m, n}, unwritten, offset),
                        .bias = bias_dtype ? make_tensor(*bias_dtype, {n}, bias, offset) : Tensor(),
                        .aux = make_tensor(dtype, {m, n}, forward ? unwritten : inputs, offset),
                        .activation = activation,
                        .form = form};
    multiply(device, args, stream_);
    std::vector<double> product = reference::matmul(a, b, shape);
    for (size_t i = 0; i < product.size(); ++i) product[i] += bias_dtype ? bias[i % shape.n] : 0.0;
    const std::vector<double> aux = values_of(args.aux, stream_), c = values_of(args.c, stream_);
    EXPECT_EQ(aux, forward ? product : inputs);
    for (size_t i = 0; i < c.size(); ++i) {
      const double expected =
          forward ? reference::gelu(product[i], form) : product[i] * reference::gelu_derivative(inputs[i], form);
      // The product is exact: one rounding of c's dtype, and some of fp32 on the way.
      EXPECT_NEAR(c[i], expected, (0.5 * limits(dtype).epsilon + 0x1p-19) * std::abs(expected) + 0x1p-24) << i;
    }
    return state().epilogues.back();
  }

  const CublasLt library_;
  CudaStream stream_;
  const testing::TempFolder folder_;
};

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
    expect_separate(device, {.shape = {5, 12, 3}});  // rows of aux
    expect_separate(device, {.offset = 1});          // its address
    expect_separate(plain, {});
    state().refuses_gelu = true;
    GemmDevice refusing(library_, "");
    expect_separate(refusing, {});
    state().required_alignment = 16;  // and the product is staged
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
  stream_.set_gemm_options({.fp32_math = Fp32Math::kTf32});
  expect_right(device, {});
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F_FAST_TF32);
  expect_right(device, {.dtype = DType::kBF16});
  EXPECT_EQ(state().compute_type, CUBLAS_COMPUTE_32F);
}

TEST_F(GemmProducts, TheFastestIsTakenAndKept) {
  const std::string path = folder_.file("choices.txt");
  {
    state().duration_ms = {6, 1, 3};
    GemmDevice device(library_, path);
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 1);
    const int products = state().products;
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 1);
    EXPECT_EQ(state().products, products + 1);
    EXPECT_EQ(state().heuristic_calls, 1);
  }
  state() = {.duration_ms = {1, 6, 3}};  // of no consequence now
  GemmDevice later(library_, path);
  expect_right(later, {});
  EXPECT_EQ(state().ran, std::vector<int>{1});
  EXPECT_EQ(state().heuristic_calls, 0);
}

TEST_F(GemmProducts, UnsteadyTimesDecideNothing) {
  const std::string path = folder_.file("choices.txt");
  {
    state().duration_ms = {60, 10, 30};
    state().scatter = 0.2;
    GemmDevice device(library_, path);
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 0) << "the library's first choice";
  }
  state() = {.duration_ms = {60, 10, 30}};
  GemmDevice later(library_, path);
  expect_right(later, {});
  EXPECT_EQ(state().ran, std::vector<int>{0}) << "what one run has used, the next ones use";
}

TEST_F(GemmProducts, NothingElseRunsWhenTimesAreMeasured) {
  CudaStream other(0, device_properties(0));
  constexpr int kPieces = 40;
  int ran = 0;
  for (int i = 0; i < kPieces; ++i) emulation::enqueue(other.handle(), [&ran] { ++ran; });
  int ran_before_first = -1;
  state().before_product = [&] {
    if (ran_before_first < 0) ran_before_first = ran;
  };
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(ran_before_first, kPieces);
  state().before_product = nullptr;
}

TEST_F(GemmProducts, AccumulatingWhileTimingAddsOnce) {
  state().duration_ms = {3, 1};
  GemmDevice device(library_, "");
  expect_right(device, {.mode = GradientMode::kAccumulate});
  EXPECT_EQ(state().last_algorithm(), 1);
  EXPECT_GT(state().products, 2);
}

TEST_F(GemmProducts, DeterministicSelectionMeasuresNothing) {
  const std::string path = folder_.file("choices.txt");
  state().duration_ms = {6, 1};
  GemmDevice device(library_, path);
  stream_.set_gemm_options({.selection = GemmSelection::kDeterministic});
  expect_right(device, {});
  EXPECT_EQ(state().ran, std::vector<int>{0});
  EXPECT_FALSE(std::ifstream(path).good());
  // The two selections keep apart.
  stream_.set_gemm_options({});
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 1);
  stream_.set_gemm_options({.selection = GemmSelection::kDeterministic});
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 0);
}

TEST_F(GemmProducts, AnAlgorithmThatDoesNotRunIsOutOfTheChoice) {
  state().duration_ms = {0, 1, 4};
  state().refused = {0};
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 1);
}

TEST_F(GemmProducts, AKeptChoiceThatTheLibraryRefusesIsReplaced) {
  const std::string path = folder_.file("choices.txt");
  state().duration_ms = {6, 1};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  state() = {.duration_ms = {1, 6}, .refused = {1}};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  EXPECT_EQ(state().last_algorithm(), 0);
  state() = {.duration_ms = {6, 1}};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  EXPECT_EQ(state().ran, std::vector<int>{0});
}

TEST_F(GemmProducts, NothingIsTimedInACapturedGraph) {
  state().duration_ms = {6, 1};
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kF32, {2, 2}, {1, 2, 3, 4}), b = make_tensor(DType::kF32, {2, 2}, {1, 0, 0, 1});
  const Tensor c = make_tensor(DType::kF32, {2, 2}, {NAN, NAN, NAN, NAN});
  stream_.gemm_workspace();  // as an earlier product of the stream would have
  begin_capture(stream_.handle());
  multiply(device, {.a = a, .b = b, .c = c}, stream_);
  const GraphHandle graph = end_capture(stream_.handle());
  EXPECT_EQ(state().ran, std::vector<int>{0});
  launch_graph(graph, stream_.handle());
  EXPECT_EQ(values_of(c, stream_), (std::vector<double>{1, 2, 3, 4}));
  destroy_graph(graph);
}

TEST_F(GemmProducts, SeveralThreadsWithAStreamEach) {
  state().duration_ms = {0, 0};
  GemmDevice device(library_, folder_.file("choices.txt"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, &device, i] {
      CudaStream stream(0, device_properties(0));
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
  state().required_alignment = 64;  // beyond what staging offers
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

TEST(Steady, TimesATenthApart) {
  EXPECT_TRUE(is_steady({0.0f, 0.0f}));
  EXPECT_TRUE(is_steady({1.0f, 1.05f, 1.09f}));
  EXPECT_FALSE(is_steady({1.0f, 1.0f, 1.0f, 1.2f}));
  EXPECT_FALSE(is_steady({1.2f, 1.0f}));
}

TEST(ClearlyFastest, AnEarlierOneWinsUnlessItIsBeatenClearly) {
  EXPECT_EQ(clearly_fastest({1.0f}), 0u);
  EXPECT_EQ(clearly_fastest({1.0f, 0.99f, 0.985f}), 0u);
  EXPECT_EQ(clearly_fastest({1.0f, 0.97f, 0.96f}), 1u);
  EXPECT_EQ(clearly_fastest({1.0f, 1.5f, 0.5f, 0.4f}), 3u);
}

}  // namespace
}  // namespace mantissa::cuda
