#include "core/autograd/derived_weights.h"

#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {
namespace {

using enum DType;

class CastWeights : public ::testing::Test {
 protected:
  CastWeights() { bind(parameter_, 1.0f); }

  // Gives `parameter` an fp32 weight with elements value, value + 2^-9, value + 2 * 2^-9, ...: distinct in fp16, while
  // bf16 rounds the odd ones.
  void bind(Parameter& parameter, float value) {
    parameter.shape = Shape{5, 7};
    parameter.weight = backend_->make_tensor(kF32, parameter.shape, "weight");
    write(parameter, value);
  }
  static void write(Parameter& parameter, float value) {
    for (int64_t e = 0; e < parameter.numel(); ++e)
      parameter.weight.data<float>()[e] = value + static_cast<float>(e) * 0x1p-9f;
  }

  // Whether `copy` is the current weight, rounded to `dtype`.
  static bool is_current(const Tensor& copy, const Parameter& parameter, DType dtype) {
    if (copy.dtype() != dtype || copy.shape() != parameter.shape) return false;
    return dispatch(dtype, [&]<typename T>() {
      for (int64_t e = 0; e < parameter.numel(); ++e) {
        if (to_float(copy.data<T>()[e]) != to_float(from_float<T>(parameter.weight.data<float>()[e]))) return false;
      }
      return true;
    });
  }
  Tensor get(DType dtype) { return weights_.cast(parameter_, dtype, *stream_); }

  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
  DerivedWeights weights_{*backend_};
  Parameter parameter_;
};

TEST_F(CastWeights, TheWorkingDtypeIsTheWeightItself) {
  EXPECT_EQ(get(kF32).raw(), parameter_.weight.raw());
  EXPECT_EQ(weights_.casts(), 0);
  EXPECT_EQ(weights_.size_bytes(DerivedKind::kCast), 0u);
}

TEST_F(CastWeights, CastsOncePerVersion) {
  const Tensor first = get(kBF16);
  EXPECT_TRUE(is_current(first, parameter_, kBF16));
  for (int use = 0; use < 3; ++use) EXPECT_EQ(get(kBF16).raw(), first.raw());
  EXPECT_EQ(weights_.casts(), 1);
}

TEST_F(CastWeights, AnUpdateInPlaceIsSeen) {
  get(kBF16);
  for (int step = 1; step <= 3; ++step) {
    write(parameter_, 1.0f + static_cast<float>(step));
    ++parameter_.version;
    EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16)) << "step " << step;
  }
  EXPECT_EQ(weights_.casts(), 4);
  EXPECT_EQ(weights_.size_bytes(DerivedKind::kCast), parameter_.weight.size_bytes() / 2);  // versions share one buffer
}

// Nested regions of fp16 and bf16 with an update in between: the case that a cache keyed by parameter alone gets wrong.
TEST_F(CastWeights, NestedDtypesAndAnUpdateNeverReturnAStaleCopy) {
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  write(parameter_, 3.0f);
  ++parameter_.version;
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));  // refreshed for each dtype on its own
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_EQ(weights_.casts(), 4);
}

TEST_F(CastWeights, ParametersAreKeptApart) {
  Parameter other;
  bind(other, 64.0f);
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(weights_.cast(other, kBF16, *stream_), other, kBF16));
  write(other, 32.0f);
  ++other.version;
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_EQ(weights_.casts(), 2);  // a new version of the other parameter costs no cast here
  EXPECT_TRUE(is_current(weights_.cast(other, kBF16, *stream_), other, kBF16));
  EXPECT_EQ(weights_.casts(), 3);
}

TEST_F(CastWeights, VersionsCountFromAnyNumber) {
  parameter_.version = 41;  // a resumed run
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  write(parameter_, 2.0f);
  parameter_.version = 7;  // a checkpoint loaded into a running program
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
}

TEST_F(CastWeights, AnUnboundWeightIsRefused) {
  Parameter unbound;
  unbound.name = "head.weight";
  EXPECT_THROW(weights_.cast(unbound, kBF16, *stream_), ContractError);
}

constexpr int64_t kRows = 5, kColumns = 7;

class PackedWeights : public ::testing::Test {
 protected:
  PackedWeights() { bind(parameter_, 1.0f); }

  void bind(Parameter& parameter, float value) {
    parameter.shape = Shape{kRows, kColumns};
    parameter.weight = backend_->make_tensor(DType::kF32, parameter.shape, "weight");
    backend_->fill(parameter.weight, value, *stream_);
  }
  // An element of ones (1, kColumns) times the transposed weight: kColumns times its value.
  float multiply(const Parameter& parameter) {
    const Tensor x = backend_->make_tensor(DType::kF32, {1, kColumns}, "x");
    const Tensor y = backend_->make_tensor(DType::kF32, {1, kRows}, "y");
    backend_->fill(x, 1.0f, *stream_);
    backend_->run(GemmArgs{.a = x,
                           .b = parameter.weight,
                           .c = y,
                           .trans_b = Transpose::kYes,
                           .b_cache = weights_.packed(parameter, DType::kF32)},
                  *stream_);
    return y.data<float>()[kRows - 1];
  }

  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
  DerivedWeights weights_{*backend_};
  Parameter parameter_;
};

TEST_F(PackedWeights, AVersionIsReadOnce) {
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  backend_->fill(parameter_.weight, 2.0f, *stream_);  // violates the contract: the version has not changed
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
}

TEST_F(PackedWeights, ANewVersionIsSeen) {
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    backend_->fill(parameter_.weight, value, *stream_);
    ++parameter_.version;
    EXPECT_EQ(multiply(parameter_), value * kColumns);
    EXPECT_EQ(multiply(parameter_), value * kColumns);
  }
}

TEST_F(PackedWeights, ParametersAndDtypesAreKeptApart) {
  Parameter other;
  bind(other, 5.0f);
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  EXPECT_EQ(multiply(other), 5.0f * kColumns);
  EXPECT_EQ(multiply(parameter_), 1.0f * kColumns);
  EXPECT_NE(weights_.packed(parameter_, DType::kF32), weights_.packed(other, DType::kF32));
  EXPECT_NE(weights_.packed(parameter_, DType::kF32), weights_.packed(parameter_, DType::kBF16));
}

TEST_F(PackedWeights, MemoryIsCountedAndUsedAgain) {
  EXPECT_EQ(weights_.size_bytes(DerivedKind::kPacked), 0u);
  multiply(parameter_);
  const size_t bytes = weights_.size_bytes(DerivedKind::kPacked);
  EXPECT_GE(bytes, sizeof(float) * kRows * kColumns);
  ++parameter_.version;
  multiply(parameter_);
  EXPECT_EQ(weights_.size_bytes(DerivedKind::kPacked), bytes);
}

}  // namespace
}  // namespace mantissa
