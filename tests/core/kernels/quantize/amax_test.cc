#include <gtest/gtest.h>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t bits_of(float magnitude) { return std::bit_cast<uint32_t>(magnitude); }

QuantizeRecord amax_of(const Tensor& x) {
  const Tensor record = make_record(QuantizeRecord{.non_finite = 77, .amax = 99});
  run(AmaxArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
  return read_record<QuantizeRecord>(record);
}

TEST(Amax, IsTheLargestMagnitudeWhereverItLies) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 3, 17, 63, 65, 4099, 16389}) {
          const Tensor x = make_tensor(dtype, {n}, random_values(n, 1));
          EXPECT_EQ(amax_of(x), record_of(stored(x)));
          for (const int64_t where : {int64_t{0}, n / 2, n - 1}) {
            if (n == 0) continue;
            const Tensor planted = make_tensor(dtype, {n}, random_values(n, 2));
            set_element(planted, where, -2.5);
            EXPECT_EQ(amax_of(planted), (QuantizeRecord{.amax = bits_of(2.5f)})) << n << ", " << where;
          }
        }
      }
    }
  });
}

// More than the elements that a GPU has threads for.
TEST(Amax, AVeryLargeTensor) {
  const int64_t n = device_under_test().large((int64_t{1} << 26) + 16387);
  const auto storage = device_under_test().guarded_storage(static_cast<size_t>(n) * sizeof(BFloat16));
  const Tensor x(storage, DType::kBF16, Shape{n});
  write_bytes(x, std::vector<BFloat16>(static_cast<size_t>(n), from_float<BFloat16>(0.5f)).data());
  EXPECT_EQ(amax_of(x), (QuantizeRecord{.amax = bits_of(0.5f)}));
  set_element(x, n - 1, 3.0);
  EXPECT_EQ(amax_of(x), (QuantizeRecord{.amax = bits_of(3.0f)}));
}

TEST(Amax, CountsWhatIsNotFiniteAndPutsNanAboveAll) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        const Tensor x = make_tensor(dtype, {20003}, random_values(20003, 3));
        set_element(x, 0, -kInfinity);
        set_element(x, 19999, kInfinity);
        EXPECT_EQ(amax_of(x), (QuantizeRecord{.non_finite = 2, .amax = kInfinityBits}));
        set_element(x, 20002, NAN);
        set_element(x, 5000, NAN);
        const QuantizeRecord found = amax_of(x);
        EXPECT_EQ(found.non_finite, 4);
        EXPECT_GT(found.amax, kInfinityBits);
        EXPECT_EQ(amax_of(make_tensor(dtype, {3}, {-0.0, 0.0, 0.0})), QuantizeRecord{});
      }
      const Tensor subnormal = make_tensor(DType::kF32, {5}, {0, -0x1p-149, 0, 0x1p-149, 0});
      EXPECT_EQ(amax_of(subnormal), (QuantizeRecord{.amax = 1}));
    }
  });
}

TEST(Amax, RaisesTheRecordAndAddsToIt) {
  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = bits_of(3.0f)});
  run(AmaxArgs{.x = make_tensor(DType::kF32, {2}, {1.0, -2.0}), .record = record});
  EXPECT_EQ(read_record<QuantizeRecord>(record), (QuantizeRecord{.non_finite = 5, .amax = bits_of(3.0f)}));
  run(AmaxArgs{.x = make_tensor(DType::kBF16, {3}, {1.0, -4.0, HUGE_VAL}), .record = record});
  run(AmaxArgs{.x = make_tensor(DType::kF16, {1}, {HUGE_VAL}), .record = record});
  EXPECT_EQ(read_record<QuantizeRecord>(record), (QuantizeRecord{.non_finite = 7, .amax = kInfinityBits}));
}

TEST(Amax, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(140001);
  std::vector<double> values = random_values(n, 1);
  for (const bool bad : {false, true}) {
    if (bad) values[values.size() / 2] = values[values.size() - 10] = NAN;
    const Tensor x = make_tensor(DType::kF32, {n}, values);
    expect_same_bits_on_every_schedule([&] {
      const Tensor record = make_record(QuantizeRecord{});
      run(AmaxArgs{.x = x, .record = record});
      return std::vector<Tensor>{record};
    });
  }
}

TEST(TensorScale, TakesTheAmaxToTheMaximum) {
  device_under_test().on_each_variant([] {
    const auto scale_of = [](uint32_t amax, float max) {
      const Tensor scale = make_unwritten(DType::kF32, {1});
      run(TensorScaleArgs{.record = make_record(QuantizeRecord{.amax = amax}), .max = max, .scale = scale});
      return elements_of<float>(scale)[0];
    };
    EXPECT_EQ(scale_of(bits_of(3.0f), 448.0f), 448.0f / 3.0f);
    EXPECT_EQ(scale_of(bits_of(0.7f), 57344.0f), 57344.0f / 0.7f);
    EXPECT_EQ(scale_of(1, 448.0f), 0x1p126f);
    EXPECT_EQ(scale_of(0, 448.0f), 1.0f);
    EXPECT_EQ(scale_of(kInfinityBits, 448.0f), 1.0f);
    EXPECT_EQ(scale_of(kInfinityBits + 1, 448.0f), 1.0f);
  });
}

// Current scaling: no host in between.
TEST(TensorScale, FollowsTheTensorFromRunToRun) {
  const Tensor x = make_tensor(DType::kF32, {67}, random_values(67, 4)), scale = make_unwritten(DType::kF32, {1});
  const Tensor record = make_record(QuantizeRecord{});
  RepeatedWork work([&] {
    run(AmaxArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
    run(TensorScaleArgs{.record = record, .max = 448.0f, .scale = scale});
  });
  for (const float largest : {7.0f, 3.0f}) {
    set_element(x, 40, largest);
    work.run();
    EXPECT_EQ(elements_of<float>(scale)[0], 448.0f / largest);
  }
}

TEST(Amax, RefusesWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {1}, {1.0}), record = make_record(QuantizeRecord{});
  expect_contract_error([&] { run(AmaxArgs{.x = x, .record = Tensor()}); }, "[amax] record must be given");
  expect_contract_error([&] { run(AmaxArgs{.x = x, .record = make_unwritten(DType::kU8, {15})}); },
                        "[amax] record must have 16 elements");
  expect_contract_error([&] { run(AmaxArgs{.x = make_indices({1}), .record = record}); },
                        "[amax] x must be fp32, bf16 or fp16");
  const Tensor scale = make_unwritten(DType::kF32, {1});
  expect_contract_error([&] { run(TensorScaleArgs{.record = record, .max = 0.0f, .scale = scale}); },
                        "[tensor_scale] max must be a format's largest number, got 0");
  expect_contract_error([&] { run(TensorScaleArgs{.record = record, .max = 448.0f, .scale = x.slice(0, 0)}); },
                        "[tensor_scale] scale must have 1 elements");
}

}  // namespace
}  // namespace mantissa::kernel_test
