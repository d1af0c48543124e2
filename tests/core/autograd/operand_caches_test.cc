#include "core/autograd/operand_caches.h"

#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {
namespace {

constexpr int64_t kRows = 5, kColumns = 7;

class OperandCachesTest : public ::testing::Test {
 protected:
  OperandCachesTest() { bind(parameter_, 1.0f); }

  void bind(Parameter& parameter, float value) {
    parameter.shape = Shape{kRows, kColumns};
    parameter.weight = backend_->make_tensor(DType::kF32, parameter.shape, "weight");
    backend_->fill(parameter.weight, value, *stream_);
  }
  // An element of ones (1, kColumns) times the weight's transpose: kColumns times its value.
  float multiply(const Parameter& parameter) {
    const Tensor x = backend_->make_tensor(DType::kF32, {1, kColumns}, "x");
    const Tensor y = backend_->make_tensor(DType::kF32, {1, kRows}, "y");
    backend_->fill(x, 1.0f, *stream_);
    backend_->run(GemmArgs{.a = x,
                           .b = parameter.weight,
                           .c = y,
                           .trans_b = Transpose::kYes,
                           .b_cache = caches_.get(parameter, DType::kF32)},
                  *stream_);
    return y.data<float>()[kRows - 1];
  }

  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
  OperandCaches caches_{*backend_};
  Parameter parameter_;
};

TEST_F(OperandCachesTest, AVersionIsReadOnce) {
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  backend_->fill(parameter_.weight, 2.0f, *stream_);  // against the contract: the version has not changed
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
}

TEST_F(OperandCachesTest, ANewVersionIsSeen) {
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    backend_->fill(parameter_.weight, value, *stream_);
    ++parameter_.version;
    EXPECT_EQ(multiply(parameter_), value * kColumns);
    EXPECT_EQ(multiply(parameter_), value * kColumns);
  }
}

TEST_F(OperandCachesTest, ParametersAndDtypesAreKeptApart) {
  Parameter other;
  bind(other, 5.0f);
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  EXPECT_EQ(multiply(other), 5.0f * kColumns);
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  EXPECT_NE(caches_.get(parameter_, DType::kF32), caches_.get(other, DType::kF32));
  EXPECT_NE(caches_.get(parameter_, DType::kF32), caches_.get(parameter_, DType::kBF16));
}

TEST_F(OperandCachesTest, MemoryIsCountedAndUsedAgain) {
  EXPECT_EQ(caches_.size_bytes(), 0u);
  multiply(parameter_);
  const size_t bytes = caches_.size_bytes();
  EXPECT_GE(bytes, sizeof(float) * kRows * kColumns);
  ++parameter_.version;
  multiply(parameter_);
  EXPECT_EQ(caches_.size_bytes(), bytes);
}

}  // namespace
}  // namespace mantissa
