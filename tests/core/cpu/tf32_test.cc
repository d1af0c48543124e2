// Products of tf32 operands: those of fp32 operands that the format's own conversion has rounded.
#include "core/kernels/gemm/gemm_cpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/backend/registry.h"
#include "core/kernels/elementwise/args.h"
#include "core/tensor/format.h"
#include "tests/testing/values.h"

namespace mantissa::cpu {
namespace {

constexpr int64_t kM = 37, kN = 29, kK = 53;

class Tf32 : public ::testing::Test {
 protected:
  Tensor tensor(const std::vector<float>& values, Shape shape) {
    const Tensor result = backend_->make_tensor(DType::kF32, shape, "test");
    backend_->upload(values.data(), result, *stream_);
    return result;
  }
  std::vector<float> values(const Tensor& tensor) {
    std::vector<float> result(static_cast<size_t>(tensor.numel()));
    backend_->download(tensor, result.data(), *stream_);
    return result;
  }
  static std::vector<float> rounded(std::vector<float> values) {
    for (float& value : values) value = quantize(Format::kTF32, value, Saturation::kNo);
    return values;
  }
  std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b) {
    const Tensor c = backend_->make_tensor(DType::kF32, {kM, kN}, "test");
    backend_->run(
        GemmArgs{
            .a = tensor(a, {kM, kK}), .b = tensor(b, {kN, kK}), .c = c, .trans_b = Transpose::kYes, .fp32_math = math_},
        *stream_);
    return values(c);
  }

  Fp32Math math_ = Fp32Math::kFull;
  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
};

TEST_F(Tf32, OperandsAreRoundedAndNothingElse) {
  const auto a = testing::normal_values(kM * kK, 1), b = testing::normal_values(kN * kK, 2);
  const auto full = product(a, b), expected = product(rounded(a), rounded(b));
  EXPECT_NE(full, expected);
  math_ = Fp32Math::kTf32;
  EXPECT_EQ(product(a, b), expected);
}

// A product with 1 is the rounded number itself.
TEST_F(Tf32, RoundsAsTheFormatDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> cases = {0.0f,
                              -0.0f,
                              1.0f + 0x1p-11f,
                              1.0f + 0x1p-11f + 0x1p-23f,
                              1.0f + 3 * 0x1p-11f,
                              -0x1.ffep3f,
                              0x1.ffeffep3f,
                              0x1.fffffep127f,
                              -0x1.fffffep127f,
                              0x1p-136f,
                              0x1p-137f,
                              0x1.8p-137f,
                              0x1p-149f,
                              0x1.ffcp-127f,
                              kInfinity,
                              -kInfinity,
                              std::nanf("")};
  const auto random = testing::normal_values(1000, 3);
  cases.insert(cases.end(), random.begin(), random.end());
  const auto count = static_cast<int64_t>(cases.size());
  const Tensor c = backend_->make_tensor(DType::kF32, {count, 1}, "test");
  math_ = Fp32Math::kTf32;
  backend_->run(GemmArgs{.a = tensor(cases, {count, 1}), .b = tensor({1.0f}, {1, 1}), .c = c, .fp32_math = math_},
                *stream_);
  const auto found = values(c), expected = rounded(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(found[i])) << cases[i];
    } else {
      EXPECT_EQ(found[i], expected[i]) << cases[i];
    }
  }
}

TEST_F(Tf32, BiasGradientsAreOfUnroundedNumbers) {
  const auto dy = testing::normal_values(kK * kM, 4), x = testing::normal_values(kK * kN, 5);
  const Tensor bias = backend_->make_tensor(DType::kF32, {kM}, "test"),
               c = backend_->make_tensor(DType::kF32, {kM, kN}, "t");
  const auto run = [&] {
    backend_->run(GemmArgs{.a = tensor(dy, {kK, kM}),
                           .b = tensor(x, {kK, kN}),
                           .c = c,
                           .bias_gradient = bias,
                           .trans_a = Transpose::kYes,
                           .fp32_math = math_},
                  *stream_);
    return values(bias);
  };
  const auto full = run();
  math_ = Fp32Math::kTf32;
  EXPECT_LT(testing::relative_error(run(), full), kK * 0x1p-24);
}

TEST_F(Tf32, SixteenBitOperandsDoNotDependOnIt) {
  const auto wide = testing::normal_values(kM * kK, 6), other = testing::normal_values(kN * kK, 7);
  const auto run = [&] {
    const Tensor a = backend_->make_tensor(DType::kF16, {kM, kK}, "test"),
                 b = backend_->make_tensor(DType::kF16, {kN, kK}, "t");
    const Tensor c = backend_->make_tensor(DType::kF32, {kM, kN}, "test");
    backend_->run(CastArgs{.src = tensor(wide, {kM, kK}), .dst = a}, *stream_);
    backend_->run(CastArgs{.src = tensor(other, {kN, kK}), .dst = b}, *stream_);
    backend_->run(GemmArgs{.a = a, .b = b, .c = c, .trans_b = Transpose::kYes, .fp32_math = math_}, *stream_);
    return values(c);
  };
  const auto full = run();
  math_ = Fp32Math::kTf32;
  EXPECT_EQ(run(), full);
}

}  // namespace
}  // namespace mantissa::cpu
