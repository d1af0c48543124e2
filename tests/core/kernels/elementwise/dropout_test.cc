// Dropout.
#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/elementwise/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/dropout.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::DropoutKey;
using reference::random_values;

DropoutArgs arguments(const Tensor& x, const Tensor& y, const DropoutKey& key) {
  return {.x = x,
          .y = y,
          .probability = static_cast<float>(key.probability),
          .seed = key.seed,
          .step = make_indices({static_cast<int32_t>(key.step)}),
          .site = key.site,
          .first_sample = key.first_sample,
          .elements_per_sample = static_cast<int64_t>(key.elements_per_sample)};
}

DropoutKey make_key(float probability, size_t elements_per_sample) {
  return {probability, 0x123456789abcdef0u, 17, 3, 1000, elements_per_sample};
}

TEST(Dropout, AgreesWithTheReferenceForAllDTypesAtOddSizes) {
  device_under_test().on_each_variant([] {
    for (const DType from : kFloatDTypes) {
      for (const DType to : kFloatDTypes) {
        for (const int64_t size : {1, 3, 17, 63, 64, 65, 129, 264}) {
          const DropoutKey key = make_key(0.3f, static_cast<size_t>(size));
          const Tensor x = make_tensor(from, {3, size}, random_values(3 * size, 1, 0.5, 2.0));
          const Tensor y = make_unwritten(to, {3, size});
          run(arguments(x, y, key));
          const std::vector<double> expected = reference::dropout_forward(values_of(x), key), actual = values_of(y);
          for (size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i] == 0.0, expected[i] == 0.0) << i;
          expect_close(y, expected, expected, kDropoutTolerance.steps(), "y");
        }
      }
    }
  });
}

// Samples of many blocks. Boundaries of samples and blocks are multiples of a vector or not.
TEST(Dropout, MaskIsExactAcrossBlocks) {
  for (const int64_t size : {40003, 40008}) {
    const size_t count = static_cast<size_t>(2 * size);
    const DropoutKey key = make_key(0.1f, static_cast<size_t>(size));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor x = make_tensor(dtype, {2, size}, std::vector<double>(count, 1.0));
      device_under_test().on_each_variant([&] {
        const Tensor y = make_unwritten(dtype, x.shape());
        run(arguments(x, y, key));
        const std::vector<double> values = values_of(y);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i] != 0.0, reference::dropout_keeps(key, i)) << i;
      });
    }
  }
}

TEST(Dropout, DoesNotDependOnHowSamplesAreBatched) {
  const DropoutKey key = make_key(0.5f, 33);
  const Tensor x = make_tensor(DType::kF32, {4, 33}, random_values(4 * 33, 1, 1.0, 2.0));
  const Tensor whole = make_unwritten(DType::kF32, {4, 33});
  run(arguments(x, whole, key));
  for (uint32_t sample = 0; sample < 4; ++sample) {
    DropoutKey one = key;
    one.first_sample = key.first_sample + sample;
    const Tensor y = make_unwritten(DType::kF32, {33});
    run(arguments(x.slice(sample * 33, 33), y, one));
    EXPECT_EQ(bytes_of(y), bytes_of(whole.slice(sample * 33, 33)));
  }
}

TEST(Dropout, EveryPartOfTheKeyMattersAndTheRateIsRight) {
  constexpr int64_t kSize = 20000;
  const Tensor x = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, 1.0));
  const auto mask = [&](const DropoutKey& key) {
    const Tensor y = make_unwritten(DType::kF32, {kSize});
    run(arguments(x, y, key));
    return values_of(y);
  };
  const DropoutKey key = make_key(0.25f, kSize);
  const std::vector<double> first = mask(key);
  const double dropped = static_cast<double>(std::count(first.begin(), first.end(), 0.0));
  EXPECT_NEAR(dropped, 0.25 * kSize, 5.0 * std::sqrt(kSize * 0.25 * 0.75));  // five standard deviations
  std::vector<DropoutKey> others(5, key);
  others[0].seed ^= 1;
  others[1].seed ^= uint64_t{1} << 40;
  others[2].step += 1;
  others[3].site += 1;
  others[4].first_sample += 1;
  for (const DropoutKey& other : others) EXPECT_NE(mask(other), first);
}

TEST(Dropout, ProbabilityZeroKeepsAll) {
  const Tensor x = make_tensor(DType::kBF16, {65}, random_values(65, 1)), y = make_unwritten(DType::kBF16, {65});
  run(arguments(x, y, make_key(0.0f, 65)));
  EXPECT_EQ(bytes_of(y), bytes_of(x));
}

TEST(Dropout, InPlaceAndTheSameBitsOnEverySchedule) {
  const int64_t size = device_under_test().large(20001);
  const std::vector<double> values = random_values(3 * size, 1);
  for (const DType dtype : kFloatDTypes) {
    const auto compute = [&](bool in_place) {
      const Tensor x = make_tensor(dtype, {3, size}, values);
      const Tensor y = in_place ? x : make_unwritten(dtype, x.shape());
      run(arguments(x, y, make_key(0.2f, static_cast<size_t>(size))));
      return std::vector<Tensor>{y};
    };
    expect_same_bits_on_every_schedule([&] { return compute(false); });
    EXPECT_EQ(bytes_of(compute(true)[0]), bytes_of(compute(false)[0]));
  }
}

TEST(Dropout, KeptNonFiniteValuesStay) {
  device_under_test().on_each_variant([] {
    const DropoutKey key = make_key(0.5f, 64);
    const Tensor x = make_tensor(DType::kF16, {64}, std::vector<double>(64, NAN)),
                 y = make_unwritten(DType::kF16, {64});
    run(arguments(x, y, key));
    const std::vector<double> values = values_of(y);
    for (size_t i = 0; i < values.size(); ++i) {
      if (reference::dropout_keeps(key, i)) {
        EXPECT_TRUE(std::isnan(values[i])) << i;
      } else {
        EXPECT_EQ(values[i], 0.0) << i;
      }
    }
  });
}

TEST(Dropout, NamesWhatIsWrong) {
  const Tensor x = make_tensor(DType::kF32, {6}, random_values(6, 1));
  expect_contract_error([&] { run(arguments(x, x, make_key(1.0f, 6))); },
                        "[dropout] probability must be in [0, 1), got 1");
  expect_contract_error([&] { run(arguments(x, x, make_key(0.1f, 4))); },
                        "[dropout] x of 6 elements must be whole samples of 4");
}

}  // namespace
}  // namespace mantissa::kernel_test
