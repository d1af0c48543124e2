#include "core/autograd/weight_cast_cache.h"

#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

class WeightCastCacheTest : public ::testing::Test {
 protected:
  WeightCastCacheTest() { bind(parameter_, 1.0f); }

  // Gives `parameter` an fp32 weight whose elements are value, value + 2^-9, value + 2 * 2^-9, ...: distinct in fp16,
  // while bf16 rounds the odd ones.
  void bind(Parameter& parameter, float value) {
    parameter.shape = Shape{5, 7};
    parameter.weight = backend_->make_tensor(kF32, parameter.shape, "weight");
    write(parameter, value);
  }
  static void write(Parameter& parameter, float value) {
    for (int64_t e = 0; e < parameter.numel(); ++e)
      parameter.weight.data<float>()[e] = value + static_cast<float>(e) * 0x1p-9f;
  }

  // Whether `copy` holds the weight as it is now, rounded to `dtype`.
  static bool is_current(const Tensor& copy, const Parameter& parameter, DType dtype) {
    if (copy.dtype() != dtype || copy.shape() != parameter.shape) return false;
    return dispatch(dtype, [&]<typename T>() {
      for (int64_t e = 0; e < parameter.numel(); ++e) {
        if (to_float(copy.data<T>()[e]) != to_float(from_float<T>(parameter.weight.data<float>()[e]))) return false;
      }
      return true;
    });
  }
  Tensor get(DType dtype) { return cache_.get(parameter_, dtype, *stream_); }

  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
  WeightCastCache cache_{*backend_};
  Parameter parameter_;
};

TEST_F(WeightCastCacheTest, TheWorkingDtypeIsTheWeightItself) {
  EXPECT_EQ(get(kF32).raw(), parameter_.weight.raw());
  EXPECT_EQ(cache_.casts(), 0);
  EXPECT_EQ(cache_.size_bytes(), 0u);
}

TEST_F(WeightCastCacheTest, CastsOncePerVersion) {
  const Tensor first = get(kBF16);
  EXPECT_TRUE(is_current(first, parameter_, kBF16));
  for (int use = 0; use < 3; ++use) EXPECT_EQ(get(kBF16).raw(), first.raw());
  EXPECT_EQ(cache_.casts(), 1);
}

TEST_F(WeightCastCacheTest, AnUpdateInPlaceIsSeen) {
  get(kBF16);
  for (int step = 1; step <= 3; ++step) {
    write(parameter_, 1.0f + static_cast<float>(step));
    ++parameter_.version;
    EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16)) << "step " << step;
  }
  EXPECT_EQ(cache_.casts(), 4);
  EXPECT_EQ(cache_.size_bytes(), parameter_.weight.size_bytes() / 2);  // versions share one buffer
}

// Regions of fp16 and bf16 inside each other, with an update in between: the case that a cache keyed by parameter alone
// gets wrong.
TEST_F(WeightCastCacheTest, NestedDtypesAndAnUpdateNeverReturnAStaleCopy) {
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  write(parameter_, 3.0f);
  ++parameter_.version;
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));  // refreshed for each dtype on its own
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_EQ(cache_.casts(), 4);
}

TEST_F(WeightCastCacheTest, ParametersAreKeptApart) {
  Parameter other;
  bind(other, 64.0f);
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_TRUE(is_current(cache_.get(other, kBF16, *stream_), other, kBF16));
  write(other, 32.0f);
  ++other.version;
  EXPECT_TRUE(is_current(get(kBF16), parameter_, kBF16));
  EXPECT_EQ(cache_.casts(), 2);  // the other's new version costs this one nothing
  EXPECT_TRUE(is_current(cache_.get(other, kBF16, *stream_), other, kBF16));
  EXPECT_EQ(cache_.casts(), 3);
}

TEST_F(WeightCastCacheTest, VersionsCountFromAnyNumber) {
  parameter_.version = 41;  // a resumed run
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
  write(parameter_, 2.0f);
  parameter_.version = 7;  // a checkpoint loaded into a running program
  EXPECT_TRUE(is_current(get(kF16), parameter_, kF16));
}

TEST_F(WeightCastCacheTest, AnUnboundWeightIsRefused) {
  Parameter unbound;
  unbound.name = "head.weight";
  EXPECT_THROW(cache_.get(unbound, kBF16, *stream_), ContractError);
}

}  // namespace
}  // namespace mantissa
