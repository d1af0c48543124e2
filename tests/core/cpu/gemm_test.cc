// gemm against the scalar reference. Built twice: for the CPU as it is, and with oneDNN held to AVX2 (held_to_avx2.cc).
#include "core/cpu/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <thread>

#include "tests/core/cpu/kernel_check.h"
#include "tests/core/cpu/test_tensor.h"
#include "tests/reference/linear.h"
#include "tests/reference/random_values.h"

namespace mantissa::cpu {
namespace {

using reference::MatmulShape;
using reference::random_values;

// A dtype and a way to multiply it.
struct Arithmetic {
  DType dtype;
  Bf16Gemm bf16;
};

std::vector<Arithmetic> arithmetics() {
  std::vector<Arithmetic> all{
      {DType::kF32, preferred_bf16_gemm()}, {DType::kF16, preferred_bf16_gemm()}, {DType::kBF16, Bf16Gemm::kWidened}};
  if (native_bf16_gemm_is_possible()) all.push_back({DType::kBF16, Bf16Gemm::kNative});
  return all;
}

// Uniform in [-1, 1], rounded to 8 significant bits (fewer below 2^-7): exact in every dtype, so that one reference
// serves all, while their products span too many bits for sums of them to be exact in fp32.
std::vector<double> short_values(size_t n, uint64_t seed) {
  std::vector<double> values = random_values(static_cast<int64_t>(n), seed);
  for (double& value : values) {
    int exponent = 0;
    std::frexp(value, &exponent);
    const int last_bit = std::max(exponent, -6) - 8;
    value = std::ldexp(std::round(std::ldexp(value, -last_bit)), last_bit);
  }
  return values;
}

// One multiplication: inputs, the expected product and the magnitudes that roundings act on.
struct Problem {
  MatmulShape shape;
  std::vector<double> a, b, product, magnitude;

  explicit Problem(const MatmulShape& s)
      : shape(s),
        a(short_values(s.m * s.k, 1)),
        b(short_values(s.k * s.n, 2)),
        product(reference::matmul(a, b, s)),
        magnitude(reference::matmul(absolute(a), absolute(b), s)) {}

  GemmArgs args(DType dtype) const {
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    return {.a = make_tensor(dtype, shape.trans_a ? Shape{k, m} : Shape{m, k}, a),
            .b = make_tensor(dtype, shape.trans_b ? Shape{n, k} : Shape{k, n}, b),
            .c = make_unwritten(dtype, {m, n}),
            .bias = {},
            .trans_a = shape.trans_a ? Transpose::kYes : Transpose::kNo,
            .trans_b = shape.trans_b ? Transpose::kYes : Transpose::kNo};
  }
  double steps() const { return kGemmTolerance.steps(static_cast<double>(shape.k)); }
  std::string name(const char* what) const {
    return fmt::format("{} {}x{}x{}{}{}", what, shape.m, shape.n, shape.k, shape.trans_a ? " a^T" : "",
                       shape.trans_b ? " b^T" : "");
  }
};

TEST(Gemm, AgreesWithTheReferenceAtOddSizes) {
  constexpr size_t kSizes[] = {1, 3, 17, 65, 129};
  size_t index = 0;
  for (const size_t m : kSizes) {
    for (const size_t n : kSizes) {
      for (const size_t k : kSizes) {
        const Problem problem({m, n, k, index % 2 != 0, index / 2 % 2 != 0});
        ++index;
        for (const Arithmetic& arithmetic : arithmetics()) {
          const GemmArgs args = problem.args(arithmetic.dtype);
          gemm(args, arithmetic.bf16);
          expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name("c"));
        }
      }
    }
  }
}

TEST(Gemm, BiasesResultDTypesAccumulationAndTransposes) {
  on_each_target([] {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        const Problem problem({17, 65, 129, trans_a, trans_b});
        const std::vector<double> bias = short_values(65, 3), initial = short_values(17 * 65, 4);
        std::vector<double> biased = problem.product, accumulated = sum_of(problem.product, initial);
        for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias[i % 65];
        std::vector<double> magnitude = problem.magnitude;
        for (double& value : magnitude) value += 1.0;  // |bias|, |initial| <= 1
        for (const Arithmetic& arithmetic : arithmetics()) {
          for (const DType c_dtype : {DType::kF32, arithmetic.dtype}) {
            for (const DType bias_dtype : kFloatDTypes) {
              GemmArgs args = problem.args(arithmetic.dtype);
              args.c = make_unwritten(c_dtype, {17, 65});
              args.bias = make_tensor(bias_dtype, {65}, bias);
              gemm(args, arithmetic.bf16);
              expect_close(args.c, biased, magnitude, problem.steps(), problem.name("with bias"));
            }
          }
          GemmArgs args = problem.args(arithmetic.dtype);
          args.c = make_tensor(DType::kF32, {17, 65}, initial);
          args.mode = GradientMode::kAccumulate;
          gemm(args, arithmetic.bf16);
          expect_close(args.c, accumulated, magnitude, problem.steps(), problem.name("accumulated"));
        }
      }
    }
  });
}

TEST(Gemm, SeveralTilesAndDepthChunksWithEdges) {
  for (const MatmulShape& shape : {MatmulShape{261, 397, 1601, false, true}, MatmulShape{397, 261, 801, true, false}}) {
    const Problem problem(shape);
    for (const Arithmetic& arithmetic : arithmetics()) {
      const GemmArgs args = problem.args(arithmetic.dtype);
      gemm(args, arithmetic.bf16);
      expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name("c"));
    }
  }
}

TEST(Gemm, ThreadsDoNotMatter) {
  // Left to itself oneDNN splits the first two over K when it has several threads; the first is one tile.
  for (const MatmulShape& shape : {MatmulShape{16, 48, 8192, true, false}, MatmulShape{64, 64, 4096, true, false},
                                   MatmulShape{261, 397, 1601, false, true}, MatmulShape{1, 1031, 769, false, false},
                                   MatmulShape{513, 97, 65, true, true}}) {
    const Problem problem(shape);
    for (const Arithmetic& arithmetic : arithmetics()) {
      expect_same_for_any_thread_count([&] {
        GemmArgs args = problem.args(arithmetic.dtype);
        gemm(args, arithmetic.bf16);
        GemmArgs sum = args;
        sum.c = make_tensor(DType::kF32, args.c.shape(), problem.magnitude);
        sum.mode = GradientMode::kAccumulate;
        gemm(sum, arithmetic.bf16);
        return std::vector<Tensor>{args.c, sum.c};
      });
    }
  }
}

TEST(Gemm, ThreadsDoNotMatterWhenAKernelIsMade) {
  // oneDNN decides when a primitive is made whether K is split, and primitives are kept: two of the same sums, one made
  // with two threads and one (accumulating onto zeros) with one.
  const Problem problem({16, 48, 6144, true, false});
  const int usual = omp_get_max_threads();
  for (const Arithmetic& arithmetic : arithmetics()) {
    GemmArgs args = problem.args(arithmetic.dtype);
    args.c = make_unwritten(DType::kF32, args.c.shape());
    omp_set_num_threads(2);
    gemm(args, arithmetic.bf16);
    GemmArgs sum = args;
    sum.c = make_tensor(DType::kF32, args.c.shape(), std::vector<double>(16 * 48));
    sum.mode = GradientMode::kAccumulate;
    omp_set_num_threads(1);
    gemm(sum, arithmetic.bf16);
    omp_set_num_threads(usual);
    EXPECT_TRUE(bytes_of(args.c) == bytes_of(sum.c)) << name(arithmetic.dtype);
  }
}

TEST(Gemm, ConcurrentCallersGetTheSameBits) {
  const Problem problem({129, 131, 257, false, true});
  for (const Arithmetic& arithmetic : arithmetics()) {
    const auto run = [&] {
      const GemmArgs args = problem.args(arithmetic.dtype);
      gemm(args, arithmetic.bf16);
      return bytes_of(args.c);
    };
    const std::vector<std::byte> expected = run();
    std::vector<std::vector<std::byte>> results(3);
    std::vector<std::thread> callers;
    for (auto& result : results) callers.emplace_back([&result, &run] { result = run(); });
    for (std::thread& caller : callers) caller.join();
    for (const auto& result : results) EXPECT_TRUE(result == expected);
  }
}

TEST(Gemm, SixteenBitResultsAreTheFp32OnesRoundedOnce) {
  const Problem problem({65, 129, 1601, false, true});
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    GemmArgs args = problem.args(dtype);
    gemm(args, Bf16Gemm::kWidened);
    GemmArgs wide = args;
    wide.c = make_unwritten(DType::kF32, args.c.shape());
    gemm(wide, Bf16Gemm::kWidened);
    EXPECT_EQ(bytes_of(args.c), bytes_of(make_tensor(dtype, args.c.shape(), values_of(wide.c))));
  }
}

TEST(Gemm, NonFiniteValuesReachExactlyTheirRowOrColumn) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr size_t kM = 19, kN = 67, kK = 131;
  for (const Arithmetic& arithmetic : arithmetics()) {
    for (const bool transposed : {false, true}) {
      Problem problem({kM, kN, kK, transposed, transposed});
      std::fill(problem.a.begin(), problem.a.end(), 1.0);
      problem.a[problem.shape.a_index(kM - 1, kK - 1)] = NAN;
      problem.b[problem.shape.b_index(kK - 1, 2)] = kInf;
      const GemmArgs args = problem.args(arithmetic.dtype);
      gemm(args, arithmetic.bf16);
      const std::vector<double> c = values_of(args.c);
      for (size_t i = 0; i < kM; ++i) {
        for (size_t j = 0; j < kN; ++j) {
          const double value = c[i * kN + j];
          if (i == kM - 1) {
            ASSERT_TRUE(std::isnan(value)) << i << ", " << j;
          } else if (j == 2) {
            ASSERT_EQ(value, kInf) << i << ", " << j;
          } else {
            ASSERT_TRUE(std::isfinite(value)) << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST(Gemm, ResultsBeyondTheLargestFp16AreInfinite) {
  const Tensor a = make_tensor(DType::kF16, {1, 1}, {256.0}), b = make_tensor(DType::kF16, {1, 2}, {256.0, 255.0});
  const Tensor c = make_unwritten(DType::kF16, {1, 2});
  gemm({.a = a, .b = b, .c = c, .bias = {}});
  EXPECT_EQ(values_of(c), (std::vector<double>{std::numeric_limits<double>::infinity(), 65280.0}));
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const auto zeros = [](DType dtype, Shape shape) {
    return make_tensor(dtype, shape, std::vector<double>(static_cast<size_t>(shape.numel())));
  };
  const Tensor a = zeros(DType::kBF16, {2, 3}), b = zeros(DType::kBF16, {3, 4}), c = zeros(DType::kBF16, {2, 4});
  expect_contract_error([&] { gemm({.a = a, .b = a, .c = c, .bias = {}}); }, "[gemm] b must have shape (3, 4)");
  expect_contract_error(
      [&] {
        gemm({.a = a, .b = zeros(DType::kF16, {3, 4}), .c = c, .bias = {}});
      },
      "[gemm] a and b must have one floating dtype, got bf16 and fp16");
  expect_contract_error(
      [&] {
        gemm({.a = a, .b = b, .c = zeros(DType::kF16, {2, 4}), .bias = {}});
      },
      "[gemm] c must be fp32 or bf16");
  expect_contract_error([&] { gemm({.a = a, .b = b, .c = c, .bias = zeros(DType::kF32, {2})}); },
                        "[gemm] bias must be floating with shape (4)");
  expect_contract_error([&] { gemm({.a = a, .b = b, .c = c, .bias = {}, .mode = GradientMode::kAccumulate}); },
                        "[gemm] c must be fp32 to accumulate");
  expect_contract_error([&] { gemm({.a = a, .b = b, .c = {}, .bias = {}}); }, "[gemm] a, b and c must be defined");
}

}  // namespace
}  // namespace mantissa::cpu
