// Probes: comparisons, exponent histograms and update stagnation.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/kernels/probe/args.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/quant/histogram_reference.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ErrorSums expected_sums(const std::vector<double>& x, const std::vector<double>& reference) {
  ErrorSums sums{.elements = static_cast<int64_t>(x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(reference[i])) {
      ++sums.non_finite;
      continue;
    }
    sums.reference_squares += reference[i] * reference[i];
    sums.squares += x[i] * x[i];
    sums.products += x[i] * reference[i];
    sums.error_squares += (x[i] - reference[i]) * (x[i] - reference[i]);
  }
  return sums;
}

// n roundings of 2^-53 on either side, relative to the sum of magnitudes.
void expect_sums(const ErrorSums& actual, const ErrorSums& expected) {
  const double bound = 2.0 * static_cast<double>(expected.elements + 1) * 0x1p-53;
  EXPECT_EQ(actual.elements, expected.elements);
  EXPECT_EQ(actual.non_finite, expected.non_finite);
  EXPECT_NEAR(actual.reference_squares, expected.reference_squares, bound * expected.reference_squares);
  EXPECT_NEAR(actual.squares, expected.squares, bound * expected.squares);
  EXPECT_NEAR(actual.products, expected.products, bound * (expected.squares + expected.reference_squares));
  EXPECT_NEAR(actual.error_squares, expected.error_squares, bound * expected.error_squares);
}

// Overwrites earlier contents of the record.
ErrorSums compared(const Tensor& x, const Tensor& reference) {
  const Tensor record = make_record(ErrorSums{.elements = 7, .non_finite = 7, .reference_squares = 7.0});
  run(CompareArgs{.x = x, .reference = reference, .record = record, .mode = GradientMode::kWrite});
  return fetch_record<ErrorSums>(record);
}

TEST(Compare, SumsSquaresProductsAndErrors) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 17, 63, 255, 257, 12288, 16385, 70001}) {
          const Tensor x = make_tensor(dtype, {n}, random_values(n, 1));
          const Tensor reference = make_tensor(DType::kF32, {n}, random_values(n, 2));
          expect_sums(compared(x, reference), expected_sums(values_of(x), values_of(reference)));
        }
      }
    }
  });
}

TEST(Compare, LeavesOutAndCountsWhatIsNotFinite) {
  std::vector<float> x(5000, 2.0f), reference(5000, 1.0f);
  x[0] = NAN, x[17] = reference[17] = kInfinity, reference[4999] = -kInfinity, x[300] = NAN, reference[301] = NAN;
  const ErrorSums sums = compared(make_elements(x), make_elements(reference));
  EXPECT_EQ(sums.non_finite, 5);
  EXPECT_EQ(sums.error_squares, 4995.0);
  EXPECT_EQ(sums.products, 2.0 * 4995.0);
  EXPECT_TRUE(std::isnan(signal_to_noise_db(sums)));
  EXPECT_TRUE(std::isnan(cosine(sums)));
}

TEST(Compare, AddsToTheRecord) {
  const Tensor record = make_record(ErrorSums());
  const Tensor x = make_elements(std::vector<float>{3.0f, -4.0f}), r = make_elements(std::vector<float>{3.0f, 4.0f});
  for (int i = 0; i < 2; ++i) run(CompareArgs{.x = x, .reference = r, .record = record});
  const ErrorSums sums = fetch_record<ErrorSums>(record);
  EXPECT_EQ(sums, (ErrorSums{.elements = 4,
                             .non_finite = 0,
                             .reference_squares = 50.0,
                             .squares = 50.0,
                             .products = -14.0,
                             .error_squares = 128.0}));
  EXPECT_DOUBLE_EQ(signal_to_noise_db(sums), 10.0 * std::log10(50.0 / 128.0));
  EXPECT_DOUBLE_EQ(cosine(sums), -14.0 / 50.0);
}

TEST(Compare, EqualValuesHaveNoNoise) {
  const Tensor x = make_tensor(DType::kF32, {333}, random_values(333, 3));
  EXPECT_EQ(signal_to_noise_db(compared(x, x)), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(cosine(compared(x, x)), 1.0, 1e-15);
  const Tensor zero = make_tensor(DType::kF32, {333}, std::vector<double>(333, 0.0));
  EXPECT_TRUE(std::isnan(signal_to_noise_db(compared(zero, zero))));
}

TEST(Compare, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(200000);
  const Tensor x = make_tensor(DType::kBF16, {n}, random_values(n, 4));
  const Tensor reference = make_tensor(DType::kF32, {n}, random_values(n, 5));
  expect_same_bits_on_every_schedule([&] {
    const Tensor record = make_record(ErrorSums());
    run(CompareArgs{.x = x, .reference = reference, .record = record});
    return std::vector<Tensor>{record};
  });
}

TEST(Compare, RefusesWhatDoesNotGoTogether) {
  const Tensor x = make_tensor(DType::kF32, {4}, random_values(4, 1)), record = make_record(ErrorSums());
  expect_contract_error(
      [&] {
        run(CompareArgs{.x = x, .reference = make_tensor(DType::kF32, {3}, random_values(3, 1)), .record = record});
      },
      "reference must have 4 elements");
  expect_contract_error(
      [&] {
        run(CompareArgs{.x = x, .reference = make_tensor(DType::kBF16, {4}, random_values(4, 1)), .record = record});
      },
      "reference must be fp32");
}

using testing::histogram_of;

// Random bit patterns of the dtype: every sign, exponent and kind of number, including Inf and NaN.
Tensor random_patterns(DType dtype, int64_t count, uint64_t seed) {
  return dispatch(dtype, [&]<typename T>() {
    std::vector<T> elements;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0];
      // Every fourth fp32 number is subnormal or 0; random bits give only 1 in 128.
      if constexpr (std::is_same_v<T, float>) {
        elements.push_back(std::bit_cast<float>(i % 4 == 0 ? word & (0x807fffffu >> i % 24) : word));
      } else {
        elements.push_back(T{static_cast<uint16_t>(word)});
      }
    }
    return make_elements(elements);
  });
}

// Overwrites earlier contents of the record.
ExponentHistogram histogram_by_kernel(const Tensor& x) {
  ExponentHistogram before;
  std::fill(std::begin(before.counts), std::end(before.counts), 77);
  before.amax = kInfinityBits - 1;
  const Tensor record = make_record(before);
  run(ExponentHistogramArgs{.x = x, .record = record, .mode = GradientMode::kWrite});
  return fetch_record<ExponentHistogram>(record);
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
    const std::vector<float> values = {0.0f,    -0.0f,      kInfinity, -kInfinity, NAN,    -0x1p-149f, 0x1p-127f,
                                       0x1p20f, -0x1p-126f, 1.5f,      448.0f,     464.0f, 65504.0f,   65520.0f};
    const ExponentHistogram found = histogram_by_kernel(make_elements(values));
    EXPECT_TRUE(found == histogram_of(values));
    EXPECT_EQ(found.counts[kZeroBin], 2);
    EXPECT_EQ(found.counts[kInfinityBin], 2);
    EXPECT_EQ(found.counts[kNanBin], 1);
    EXPECT_EQ(found.counts[0], 1);
    EXPECT_EQ(found.amax, magnitude_bits(0x1p20f));
    // Nothing is finite, so there is no amax.
    EXPECT_EQ(histogram_by_kernel(make_elements<float>({NAN, kInfinity})).amax, 0u);
  });
}

TEST(ExponentHistogram, AddsToTheRecord) {
  const std::vector<float> first = {1.0f, -8.0f, NAN}, second = {2.0f, 1.0f};
  const Tensor record = make_record(ExponentHistogram{});
  run(ExponentHistogramArgs{.x = make_elements(first), .record = record});
  run(ExponentHistogramArgs{.x = make_elements(second), .record = record});
  EXPECT_TRUE(fetch_record<ExponentHistogram>(record) == histogram_of({1.0f, -8.0f, NAN, 2.0f, 1.0f}));
}

// More elements than a GPU has threads.
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
    EXPECT_TRUE(fetch_record<ExponentHistogram>(record) == histogram_of(stored(x)));
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

// ulp(w) / 2 by definition, in double.
double half_ulp(Format format, float weight) {
  const FormatInfo& f = info(format);
  const int exponent = weight == 0.0f ? 1 - f.bias : std::max(std::ilogb(weight), 1 - f.bias);
  return std::ldexp(1.0, exponent - f.mantissa_bits - 1);
}

UpdateStagnation counted(const std::vector<float>& weights, const std::vector<float>& deltas) {
  UpdateStagnation found{.elements = static_cast<int64_t>(weights.size())};
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || !std::isfinite(deltas[i])) {
      ++found.non_finite;
      continue;
    }
    found.zero += deltas[i] == 0.0f;
    for (int format = 0; format < kStagnationFormatCount; ++format) {
      const double least = half_ulp(kStagnationFormats[format], weights[i]);
      found.stagnant[format] += std::fabs(static_cast<double>(deltas[i])) < least;
    }
  }
  return found;
}

// The kernel's counts for the given updates. Overwrites earlier contents of the record.
UpdateStagnation counts_of(UpdateStagnationArgs args) {
  args.record = make_record(UpdateStagnation{.elements = 7, .zero = 7, .non_finite = 7, .stagnant = {7, 7, 7}});
  args.mode = GradientMode::kWrite;
  run(args);
  return fetch_record<UpdateStagnation>(args.record);
}

// Weights of every exponent, and updates at, below and above half an ulp of one of the formats.
struct Updates {
  std::vector<float> weights, deltas;

  explicit Updates(int64_t count, uint64_t seed = 1) {
    for (int64_t i = 0; i < count; ++i) {
      const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0});
      float weight = std::bit_cast<float>(words[0]);
      if (words[1] % 3 != 0)
        weight =
            std::ldexp(std::bit_cast<float>((words[0] & 0x807fffffu) | 0x3f800000u), -static_cast<int>(words[1] % 20));
      if (words[1] % 32 == 1) weight = std::bit_cast<float>(words[0] & 0x807fffffu);
      const double half = half_ulp(kStagnationFormats[words[2] % 3], std::isfinite(weight) ? weight : 1.0f);
      auto delta = static_cast<float>(half);
      if (words[2] % 5 == 0) delta = std::nextafterf(delta, 0.0f);
      if (words[2] % 5 == 1) delta = std::nextafterf(delta, kInfinity);
      if (words[2] % 5 == 2) delta = std::ldexp(delta, static_cast<int>(words[3] % 9) - 4);
      if (words[2] % 64 == 3) delta = 0.0f;
      if (words[2] % 64 == 4) delta = NAN;
      weights.push_back(weight);
      deltas.push_back(words[3] >> 31 != 0 ? -delta : delta);
    }
  }
};

TEST(UpdateStagnation, CountsWhatIsBelowHalfAnUlp) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const int64_t n : {0, 1, 3, 17, 63, 65, 4099, 16389}) {
        const Updates updates(n);
        const Tensor weight = make_elements(updates.weights), delta = make_elements(updates.deltas);
        EXPECT_EQ(counts_of({.weight = weight, .delta = delta}), counted(updates.weights, updates.deltas)) << n;
      }
    }
  });
}

TEST(UpdateStagnation, CountsTheDifferenceOfWeights) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const int64_t n : {1, 17, 63, 4099}) {
        const Updates updates(n, 2);
        std::vector<float> updated, deltas;
        for (size_t i = 0; i < updates.weights.size(); ++i) {
          updated.push_back(updates.weights[i] + updates.deltas[i]);
          deltas.push_back(updated[i] - updates.weights[i]);
        }
        const Tensor weight = make_elements(updates.weights), to = make_elements(updated);
        EXPECT_EQ(counts_of({.weight = weight, .updated = to}), counted(updates.weights, deltas)) << n;
      }
    }
  });
}

TEST(UpdateStagnation, AtTheEdgesOfFormats) {
  device_under_test().on_each_variant([] {
    const auto stagnant = [](float weight, float delta) {
      const UpdateStagnation found =
          counts_of({.weight = make_elements<float>({weight}), .delta = make_elements<float>({delta})});
      return std::vector<int64_t>(std::begin(found.stagnant), std::end(found.stagnant));
    };
    using Counts = std::vector<int64_t>;  // fp32, bf16, fp16
    EXPECT_EQ(stagnant(1.0f, 0x1p-25f), (Counts{1, 1, 1}));
    EXPECT_EQ(stagnant(1.0f, -0x1p-24f), (Counts{0, 1, 1}));
    EXPECT_EQ(stagnant(-1.5f, 0x1p-11f), (Counts{0, 1, 0}));
    EXPECT_EQ(stagnant(1.0f, 0x1p-8f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(0.0f, 0x1p-149f), (Counts{0, 1, 1}));  // subnormals: fp32's smallest, far below fp16's
    EXPECT_EQ(stagnant(0.0f, 0.0f), (Counts{1, 1, 1}));
    EXPECT_EQ(stagnant(0x1p-140f, 0x1p-134f), (Counts{0, 0, 1}));
    EXPECT_EQ(stagnant(0x1p-140f, 0x1p-135f), (Counts{0, 1, 1}));
    EXPECT_EQ(stagnant(0x1p-20f, 0x1p-25f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(0x1.8p127f, 0x1p127f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(kInfinity, 0.0f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(NAN, 0.0f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(1.0f, NAN), (Counts{0, 0, 0}));
  });
}

TEST(UpdateStagnation, AddsToTheRecord) {
  const Tensor record = make_record(UpdateStagnation{});
  const Tensor weight = make_elements<float>({1.0f, 2.0f, NAN}), delta = make_elements<float>({0.0f, 0x1p-10f, 1.0f});
  for (int time = 1; time <= 2; ++time) run(UpdateStagnationArgs{.weight = weight, .delta = delta, .record = record});
  EXPECT_EQ(fetch_record<UpdateStagnation>(record),
            (UpdateStagnation{.elements = 6, .zero = 2, .non_finite = 2, .stagnant = {2, 4, 2}}));
}

TEST(UpdateStagnation, TheSameBitsOnEverySchedule) {
  const Updates updates(device_under_test().large(140001));
  const Tensor weight = make_elements(updates.weights), delta = make_elements(updates.deltas);
  const UpdateStagnation expected = counted(updates.weights, updates.deltas);
  expect_same_bits_on_every_schedule([&] {
    const Tensor record = make_record(UpdateStagnation{});
    run(UpdateStagnationArgs{.weight = weight, .delta = delta, .record = record});
    EXPECT_EQ(fetch_record<UpdateStagnation>(record), expected);
    return std::vector<Tensor>{record};
  });
}

TEST(UpdateStagnation, RefusesWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {2}, {1.0, 2.0}), record = make_record(UpdateStagnation{});
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = x, .record = record}); },
                        "[update_stagnation] one of delta and updated must be given, got neither");
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = x, .delta = x, .updated = x, .record = record}); },
                        "[update_stagnation] one of delta and updated must be given, got both");
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = x, .delta = x.slice(0, 1), .record = record}); },
                        "[update_stagnation] delta must have shape weight's");
  const Tensor half = make_tensor(DType::kBF16, {2}, {1.0, 2.0});
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = half, .delta = x, .record = record}); },
                        "[update_stagnation] weight must be fp32, got bf16");
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = x, .updated = half, .record = record}); },
                        "[update_stagnation] updated must be fp32, got bf16");
  expect_contract_error([&] { run(UpdateStagnationArgs{.weight = x, .delta = x, .record = Tensor()}); },
                        "[update_stagnation] record must be given");
}

}  // namespace
}  // namespace mantissa::kernel_test
