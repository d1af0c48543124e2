// Matrix products, with and without scales of their operands.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/core/kernels/gemm/gemm_problem.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/bias.h"

namespace mantissa::kernel_test {
namespace gemm_test {

using reference::MatmulShape;

TEST(Gemm, AgreesWithTheReferenceAtOddSizes) {
  constexpr size_t kSizes[] = {1, 3, 17, 65, 129};
  size_t index = 0;
  for (const size_t m : kSizes) {
    for (const size_t n : kSizes) {
      for (const size_t k : kSizes) {
        const Problem problem({m, n, k, index % 2 != 0, index / 2 % 2 != 0});
        ++index;
        device_under_test().on_each_variant([&] {
          for (const GemmWay& way : device_under_test().gemm_ways()) {
            const GemmArgs args = problem.args(way.dtype);
            way.gemm(args);
            expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name(way.name));
          }
        });
      }
    }
  }
}

TEST(Gemm, BiasesResultDTypesAccumulationAndTransposes) {
  device_under_test().on_each_variant([] {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        const Problem problem({17, 65, 129, trans_a, trans_b});
        const std::vector<double> bias = short_values(65, 3), initial = short_values(17 * 65, 4);
        std::vector<double> biased = problem.product, accumulated = sum_of(problem.product, initial);
        for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias[i % 65];
        std::vector<double> magnitude = problem.magnitude;
        for (double& value : magnitude) value += 1.0;  // |bias|, |initial| <= 1
        for (const GemmWay& way : device_under_test().gemm_ways()) {
          for (const DType c_dtype : {DType::kF32, way.dtype}) {
            for (const DType bias_dtype : kFloatDTypes) {
              GemmArgs args = problem.args(way.dtype);
              args.c = make_unwritten(c_dtype, {17, 65});
              args.bias = make_tensor(bias_dtype, {65}, bias);
              way.gemm(args);
              expect_close(args.c, biased, magnitude, problem.steps(), problem.name(way.name + " with bias"),
                           problem.rounding_before_bias(c_dtype));
            }
          }
          GemmArgs args = problem.args(way.dtype);
          args.c = make_tensor(DType::kF32, {17, 65}, initial);
          args.mode = GradientMode::kAccumulate;
          way.gemm(args);
          expect_close(args.c, accumulated, magnitude, problem.steps(), problem.name(way.name + " accumulated"));
        }
      }
    }
  });
}

// 1 + bias lies at or next to the middle of two numbers of c's dtype. The bias's last bits, beyond c's precision,
// would decide.
TEST(Gemm, ABiasIsRoundedToTheResultsDType) {
  const auto sum = [](const GemmWay& way, DType c_dtype, DType bias_dtype, double bias) {
    GemmArgs args{.a = make_tensor(way.dtype, {1, 1}, {1.0}),
                  .b = make_tensor(way.dtype, {1, 1}, {1.0}),
                  .c = make_unwritten(c_dtype, {1, 1}),
                  .bias = make_tensor(bias_dtype, {1}, {bias})};
    way.gemm(args);
    return values_of(args.c)[0];
  };
  device_under_test().on_each_variant([&] {
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      EXPECT_EQ(sum(way, DType::kF32, DType::kF32, 0x1p-8 + 0x1p-20), 1.0 + 0x1p-8 + 0x1p-20);
      EXPECT_EQ(sum(way, DType::kF32, DType::kF16, 0x1p-8 + 0x1p-16), 1.0 + 0x1p-8 + 0x1p-16);
      if (way.dtype == DType::kBF16) {
        EXPECT_EQ(sum(way, DType::kBF16, DType::kF32, 0x1p-8 + 0x1p-20), 1.0);
        EXPECT_EQ(sum(way, DType::kBF16, DType::kF16, 0x1p-8 + 0x1p-16), 1.0);
        EXPECT_EQ(sum(way, DType::kBF16, DType::kF32, 0x1p-8 + 0x1p-15), 1.0 + 0x1p-7);
      }
      if (way.dtype == DType::kF16) {
        EXPECT_EQ(sum(way, DType::kF16, DType::kF32, 0x1p-11 + 0x1p-23), 1.0);
        EXPECT_EQ(sum(way, DType::kF16, DType::kBF16, 0x1p-11), 1.0);
      }
    }
  });
}

TEST(Gemm, TheBiasGradientIsTheColumnSumsOfA) {
  // The last has several stretches of K, and of rows beyond one task.
  for (const MatmulShape& shape :
       {MatmulShape{1, 1, 1, true, false}, MatmulShape{3, 17, 65, true, true}, MatmulShape{65, 129, 63, true, false},
        MatmulShape{261, 97, 1601, true, false}, MatmulShape{17, 3, 8201, true, false}}) {
    const Problem problem(shape);
    const std::vector<double> expected = reference::column_sum(problem.a, shape.m),
                              magnitude = reference::column_sum(absolute(problem.a), shape.m),
                              before = short_values(shape.m, 5);
    const auto m = static_cast<int64_t>(shape.m);
    device_under_test().on_each_variant([&] {
      for (const GemmWay& way : device_under_test().gemm_ways()) {
        GemmArgs args = problem.args(way.dtype);
        args.bias_gradient = make_unwritten(DType::kF32, {m});
        way.gemm(args);
        const double steps = kColumnSumTolerance.steps(static_cast<double>(shape.k));
        expect_close(args.bias_gradient, expected, magnitude, steps, problem.name(way.name + " bias gradient"));
        expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name(way.name));

        args.bias_gradient = make_tensor(DType::kF32, {m}, before);
        args.bias_gradient_mode = GradientMode::kAccumulate;
        way.gemm(args);
        expect_close(args.bias_gradient, sum_of(expected, before), sum_of(magnitude, absolute(before)), steps,
                     problem.name(way.name + " bias gradient accumulated"));
      }
    });
  }
}

TEST(Gemm, SeveralTilesAndDepthChunksWithEdges) {
  // The last has so many columns that tasks pack their own.
  for (const MatmulShape& shape : {MatmulShape{261, 397, 1601, false, true}, MatmulShape{397, 261, 801, true, false},
                                   MatmulShape{19, 1601, 4100, false, true}}) {
    const Problem problem(shape);
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      const GemmArgs args = problem.args(way.dtype);
      way.gemm(args);
      expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name(way.name));
    }
  }
}

TEST(Gemm, TheSameBitsOnEverySchedule) {
  // By default libraries split the first two over K. The first is one tile.
  for (const MatmulShape& shape : {MatmulShape{16, 48, 8192, true, false}, MatmulShape{64, 64, 4096, true, false},
                                   MatmulShape{261, 397, 1601, false, true}, MatmulShape{1, 1031, 769, false, false},
                                   MatmulShape{513, 97, 65, true, true}, MatmulShape{19, 1601, 2100, false, true}}) {
    const Problem problem(shape);
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      expect_same_bits_on_every_schedule([&] {
        GemmArgs args = problem.args(way.dtype);
        way.gemm(args);
        GemmArgs sum = args;
        sum.c = make_tensor(DType::kF32, args.c.shape(), problem.magnitude);
        sum.mode = GradientMode::kAccumulate;
        if (shape.trans_a) sum.bias_gradient = make_unwritten(DType::kF32, {static_cast<int64_t>(shape.m)});
        way.gemm(sum);
        std::vector<Tensor> results{args.c, sum.c};
        if (shape.trans_a) results.push_back(sum.bias_gradient);
        return results;
      });
    }
  }
}

TEST(Gemm, NonFiniteValuesReachExactlyTheirRowOrColumn) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr size_t kM = 19, kN = 67, kK = 131;
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    for (const bool transposed : {false, true}) {
      Problem problem({kM, kN, kK, transposed, transposed});
      std::fill(problem.a.begin(), problem.a.end(), 1.0);
      problem.a[problem.shape.a_index(kM - 1, kK - 1)] = NAN;
      problem.b[problem.shape.b_index(kK - 1, 2)] = kInf;
      const GemmArgs args = problem.args(way.dtype);
      way.gemm(args);
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
  run(GemmArgs{.a = a, .b = b, .c = c, .bias = {}});
  EXPECT_EQ(values_of(c), (std::vector<double>{std::numeric_limits<double>::infinity(), 65280.0}));
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const auto zeros = [](DType dtype, Shape shape) {
    return make_tensor(dtype, shape, std::vector<double>(static_cast<size_t>(shape.numel())));
  };
  const Tensor a = zeros(DType::kBF16, {2, 3}), b = zeros(DType::kBF16, {3, 4}), c = zeros(DType::kBF16, {2, 4});
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = a, .c = c, .bias = {}}); }, "[gemm] b must have shape (3, 4)");
  expect_contract_error(
      [&] {
        run(GemmArgs{.a = a, .b = zeros(DType::kF16, {3, 4}), .c = c, .bias = {}});
      },
      "[gemm] a and b must have one floating dtype, or be codes, got bf16 and fp16");
  expect_contract_error(
      [&] {
        run(GemmArgs{.a = a, .b = b, .c = zeros(DType::kF16, {2, 4}), .bias = {}});
      },
      "[gemm] c must be fp32 or bf16");
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = b, .c = c, .bias = zeros(DType::kF32, {2})}); },
                        "[gemm] bias must be floating with shape (4)");
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = b, .c = c, .bias = {}, .mode = GradientMode::kAccumulate}); },
                        "[gemm] c must be fp32 to accumulate");
  const Tensor sums = zeros(DType::kF32, {2});
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = b, .c = c, .bias_gradient = sums}); },
                        "[gemm] bias_gradient needs a transposed a");
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = b, .c = c, .bias_gradient = zeros(DType::kF32, {3})}); },
                        "[gemm] bias_gradient must have shape (M)=(2), got (3)");
  expect_contract_error([&] { run(GemmArgs{.a = a, .b = b, .c = {}, .bias = {}}); },
                        "[gemm] a, b and c must be defined");
}

// ---- Products divided by the scales of their operands.

// Both are no powers of two.
constexpr float kScaleA = 0.37f, kScaleB = 11.3f;

struct Scales {
  bool a, b;
  double divisor() const { return (a ? double{kScaleA} : 1.0) * (b ? double{kScaleB} : 1.0); }
  void give_to(GemmArgs& args) const {
    if (a) args.a_scale = make_elements<float>({kScaleA});
    if (b) args.b_scale = make_elements<float>({kScaleB});
  }
};
constexpr Scales kScales[] = {{true, false}, {false, true}, {true, true}};

std::vector<double> divided(std::vector<double> values, double divisor) {
  for (double& value : values) value /= divisor;
  return values;
}

// Two more inverses and two more products than without scales.
double steps_of(const Problem& problem) { return problem.steps() + 4.0; }

TEST(GemmScales, DivideTheProductAlone) {
  device_under_test().on_each_variant([] {
    for (const MatmulShape& shape : {MatmulShape{17, 65, 129, false, false}, MatmulShape{17, 65, 129, true, false},
                                     MatmulShape{5, 3, 300, false, true}, MatmulShape{64, 16, 32, true, true}}) {
      const Problem problem(shape);
      const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n);
      const std::vector<double> bias = short_values(shape.n, 3), initial = short_values(shape.m * shape.n, 4);
      for (const Scales& scales : kScales) {
        const std::vector<double> product = divided(problem.product, scales.divisor());
        std::vector<double> magnitude = divided(problem.magnitude, scales.divisor()), biased = product;
        for (double& value : magnitude) value += 1.0;  // |bias|, |initial| <= 1
        for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias[i % shape.n];
        for (const GemmWay& way : device_under_test().gemm_ways()) {
          for (const DType c_dtype : {DType::kF32, way.dtype}) {
            GemmArgs args = problem.args(way.dtype);
            scales.give_to(args);
            args.c = make_unwritten(c_dtype, {m, n});
            way.gemm(args);
            expect_close(args.c, product, magnitude, steps_of(problem), problem.name(way.name + " scaled"));
            args.bias = make_tensor(DType::kF32, {n}, bias);
            way.gemm(args);
            std::vector<double> slack = problem.rounding_before_bias(c_dtype, scales.divisor());
            for (double& value : slack) value += 0.5 * info(format_of(c_dtype)).epsilon;  // the bias is rounded
            expect_close(args.c, biased, magnitude, steps_of(problem), problem.name(way.name + " with bias"), slack);
          }
          GemmArgs args = problem.args(way.dtype);
          scales.give_to(args);
          args.c = make_tensor(DType::kF32, {m, n}, initial);
          args.mode = GradientMode::kAccumulate;
          way.gemm(args);
          expect_close(args.c, sum_of(product, initial), magnitude, steps_of(problem),
                       problem.name(way.name + " accumulated"));
        }
      }
    }
  });
}

// The product of codes is far beyond fp16's range, the product of the encoded numbers is not. Divide before rounding.
TEST(GemmScales, DivideBeforeTheResultIsRounded) {
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    const GemmArgs args{.a = make_tensor(way.dtype, {1, 2}, {448.0, 448.0}),
                        .b = make_tensor(way.dtype, {2, 1}, {448.0, 448.0}),
                        .c = make_unwritten(way.dtype, {1, 1}),
                        .a_scale = make_elements<float>({0x1p9f}),
                        .b_scale = make_elements<float>({0x1p8f})};
    way.gemm(args);
    EXPECT_EQ(values_of(args.c)[0], 3.0625) << way.name;
  }
}

TEST(GemmScales, TheSameBitsOnEverySchedule) {
  for (const MatmulShape& shape : {MatmulShape{64, 64, 1601, true, false}, MatmulShape{261, 97, 65, false, true}}) {
    const Problem problem(shape);
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      expect_same_bits_on_every_schedule([&] {
        GemmArgs args = problem.args(way.dtype);
        Scales{true, true}.give_to(args);
        way.gemm(args);
        return std::vector<Tensor>{args.c};
      });
    }
  }
}

TEST(GemmScales, AreReadWhenTheProductRuns) {
  const Tensor a_scale = make_elements<float>({1.0f}), b_scale = make_elements<float>({1.0f});
  GemmArgs args{.a = make_tensor(DType::kBF16, {1, 1}, {3.0}),
                .b = make_tensor(DType::kBF16, {1, 1}, {5.0}),
                .c = make_unwritten(DType::kF32, {1, 1}),
                .a_scale = a_scale,
                .b_scale = b_scale};
  RepeatedWork work([&] { run(args); });
  for (const float scale : {0.5f, 8.0f}) {
    write_bytes(a_scale, &scale);
    work.run();
    EXPECT_EQ(values_of(args.c)[0], 15.0 / scale);
    write_bytes(b_scale, &scale);
    work.run();
    EXPECT_EQ(values_of(args.c)[0], 15.0 / scale / scale);
    const float one = 1.0f;
    write_bytes(b_scale, &one);
  }
}

TEST(GemmScales, RefuseWhatTheyDoNotGoWith) {
  const Tensor a = make_unwritten(DType::kBF16, {3, 2}), b = make_unwritten(DType::kBF16, {3, 4}),
               c = make_unwritten(DType::kBF16, {2, 4}), aux = make_unwritten(DType::kBF16, {2, 4}),
               one = make_elements<float>({1.0f});
  const GemmArgs good{.a = a, .b = b, .c = c, .a_scale = one, .b_scale = one, .trans_a = Transpose::kYes};
  EXPECT_NO_THROW(run(good));
  const ExpectRefused expect_refused(good, "[gemm] ");
  expect_refused([](GemmArgs& args) { args.a_scale = make_unwritten(DType::kF32, {2}); }, "a_scale must have 1");
  expect_refused([](GemmArgs& args) { args.b_scale = make_unwritten(DType::kBF16, {1}); }, "b_scale must be fp32");
  expect_refused(
      [&](GemmArgs& args) {
        args.activation = GemmActivation::kGelu;
        args.aux = aux;
      },
      "a_scale divides a product without an activation only");
  for (Tensor GemmArgs::*other : {&GemmArgs::a_scale, &GemmArgs::b_scale}) {
    expect_refused(
        [&](GemmArgs& args) {
          args.*other = Tensor();
          args.bias_gradient = make_unwritten(DType::kF32, {2});
        },
        "bias_gradient sums a as it is stored");
  }
}

}  // namespace gemm_test
}  // namespace mantissa::kernel_test
