#include <gtest/gtest.h>

#include "core/kernels/probe/args.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/quant/histogram_reference.h"

namespace mantissa::kernel_test {
namespace {

using testing::histogram_of;

// Every sign, exponent and kind of number, Inf and NaN among them: the dtype's own bit patterns at random.
template <typename T>
Tensor random_patterns(int64_t count, uint64_t seed) {
  std::vector<T> elements;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0];
    // Of fp32 every fourth is subnormal or 0: they are 1 in 128 otherwise.
    if constexpr (std::is_same_v<T, float>) {
      elements.push_back(std::bit_cast<float>(i % 4 == 0 ? word & (0x807fffffu >> i % 24) : word));
    } else {
      elements.push_back(T{static_cast<uint16_t>(word)});
    }
  }
  return make_elements(elements);
}

Tensor random_patterns(DType dtype, int64_t count, uint64_t seed) {
  return dispatch(dtype, [&]<typename T>() { return random_patterns<T>(count, seed); });
}

// What was in the record is gone.
ExponentHistogram histogram_by_kernel(const Tensor& x) {
  ExponentHistogram before;
  std::fill(std::begin(before.counts), std::end(before.counts), 77);
  before.amax = kInfinityBits - 1;
  const Tensor record = make_record(before);
  run(ExponentHistogramArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
  return read_record<ExponentHistogram>(record);
}

TEST(ExponentHistogram, CountsEveryElementOnce) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 3, 17, 63, 65, 4099}) {
          const Tensor x = random_patterns(dtype, n, 1);
          EXPECT_TRUE(histogram_by_kernel(x) == histogram_of(stored(x))) << name(dtype) << ", " << n;
        }
      }
    }
  });
}

TEST(ExponentHistogram, OfValuesThatLieTogether) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      const int64_t n = device_under_test().large(70001);
      const Tensor x = tensor_of(dtype, {n}, testing::normal_values(n, 3, 1e-3f));
      EXPECT_TRUE(histogram_by_kernel(x) == histogram_of(stored(x))) << name(dtype);
    }
  });
}

TEST(ExponentHistogram, KeepsApartZeroSubnormalInfinityAndNan) {
  device_under_test().on_each_variant([] {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values = {0.0f,    -0.0f,      infinity, -infinity, NAN,    -0x1p-149f, 0x1p-127f,
                                       0x1p20f, -0x1p-126f, 1.5f,     448.0f,    464.0f, 65504.0f,   65520.0f};
    const ExponentHistogram found = histogram_by_kernel(make_elements(values));
    EXPECT_TRUE(found == histogram_of(values));
    EXPECT_EQ(found.counts[kZeroBin], 2);
    EXPECT_EQ(found.counts[kInfinityBin], 2);
    EXPECT_EQ(found.counts[kNanBin], 1);
    EXPECT_EQ(found.counts[0], 1);
    EXPECT_EQ(found.amax, magnitude_bits(0x1p20f));
    // Nothing finite: there is no amax.
    EXPECT_EQ(histogram_by_kernel(make_elements<float>({NAN, infinity})).amax, 0u);
  });
}

TEST(ExponentHistogram, AddsToTheRecord) {
  const std::vector<float> first = {1.0f, -8.0f, NAN}, second = {2.0f, 1.0f};
  const Tensor record = make_record(ExponentHistogram{});
  run(ExponentHistogramArgs{.x = make_elements(first), .record = record});
  run(ExponentHistogramArgs{.x = make_elements(second), .record = record});
  EXPECT_TRUE(read_record<ExponentHistogram>(record) == histogram_of({1.0f, -8.0f, NAN, 2.0f, 1.0f}));
}

// More than the elements that a GPU has threads for.
TEST(ExponentHistogram, AVeryLargeTensor) {
  const int64_t n = device_under_test().large((int64_t{1} << 26) + 16387);
  const auto storage = device_under_test().guarded_storage(static_cast<size_t>(n) * sizeof(BFloat16));
  const Tensor x(storage, DType::kBF16, Shape{n});
  write_bytes(x, std::vector<BFloat16>(static_cast<size_t>(n), from_float<BFloat16>(0.5f)).data());
  set_element(x, n - 1, 3.0);
  ExponentHistogram expected = histogram_of({3.0f});
  expected.counts[histogram_bin(magnitude_bits(0.5f))] = n - 1;
  EXPECT_TRUE(histogram_by_kernel(x) == expected);
}

TEST(ExponentHistogram, TheSameBitsOnEverySchedule) {
  const Tensor x = random_patterns(DType::kF32, device_under_test().large(140001), 5);
  expect_same_bits_on_every_schedule([&] {
    const Tensor record = make_record(ExponentHistogram{});
    run(ExponentHistogramArgs{.x = x, .record = record});
    return std::vector<Tensor>{record};
  });
}

TEST(ExponentHistogram, FollowsTheTensorFromRunToRun) {
  const Tensor x = random_patterns(DType::kF32, 67, 4), record = make_record(ExponentHistogram{});
  RepeatedWork work([&] { run(ExponentHistogramArgs{.x = x, .record = record, .mode = GradientMode::kWrite}); });
  for (const double value : {7.0, 0x1p-130}) {
    set_element(x, 40, value);
    work.run();
    EXPECT_TRUE(read_record<ExponentHistogram>(record) == histogram_of(stored(x)));
  }
}

TEST(ExponentHistogram, RefusesWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {1}, {1.0}), record = make_record(ExponentHistogram{});
  expect_contract_error([&] { run(ExponentHistogramArgs{.x = x, .record = Tensor()}); },
                        "[exponent_histogram] record must be given");
  expect_contract_error([&] { run(ExponentHistogramArgs{.x = x, .record = make_unwritten(DType::kU8, {15})}); },
                        "[exponent_histogram] record must have 24408 elements");
  expect_contract_error([&] { run(ExponentHistogramArgs{.x = make_indices({1}), .record = record}); },
                        "[exponent_histogram] x must be fp32, bf16 or fp16");
}

}  // namespace
}  // namespace mantissa::kernel_test
