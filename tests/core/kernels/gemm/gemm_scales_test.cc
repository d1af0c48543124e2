// Products that are divided by the scales of their operands.
#include <gtest/gtest.h>

#include "tests/core/kernels/gemm/gemm_problem.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"

namespace mantissa::kernel_test {
namespace {

using reference::MatmulShape;

// Neither is a power of two.
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

// Two inverses and two products more than without scales.
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
            std::vector<double> slack(biased.size());  // a bias is rounded to c's dtype
            for (double& value : slack) value = 0.5 * info(format_of(c_dtype)).epsilon;
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

// The product of codes is far beyond fp16, and that of what they stand for is not: it is divided before it is rounded.
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
  const auto expect_refused = [&](auto&& change, const std::string& text) {
    GemmArgs args = good;
    change(args);
    expect_contract_error([&] { run(args); }, "[gemm] " + text);
  };
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
        "bias_gradient adds up a as it is stored");
  }
}

}  // namespace
}  // namespace mantissa::kernel_test
