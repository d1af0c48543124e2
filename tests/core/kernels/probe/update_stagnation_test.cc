#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/kernels/probe/args.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"

namespace mantissa::kernel_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ulp(w) / 2 by its definition, in double.
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

// The kernel's counts of updates given as such; what was in the record is gone.
UpdateStagnation of_deltas(const Tensor& weight, const Tensor& delta) {
  const Tensor record = make_record(UpdateStagnation{.elements = 7, .zero = 7, .non_finite = 7, .stagnant = {7, 7, 7}});
  run(UpdateStagnationArgs{.weight = weight, .delta = delta, .record = record, .mode = GradientMode::kWrite});
  return read_record<UpdateStagnation>(record);
}

UpdateStagnation of_updated(const Tensor& weight, const Tensor& updated) {
  const Tensor record = make_record(UpdateStagnation{.elements = 7, .zero = 7, .non_finite = 7, .stagnant = {7, 7, 7}});
  run(UpdateStagnationArgs{.weight = weight, .updated = updated, .record = record, .mode = GradientMode::kWrite});
  return read_record<UpdateStagnation>(record);
}

// Weights of every exponent, and updates around half of an ulp of one of the formats, on it and below and above.
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
        EXPECT_EQ(of_deltas(make_elements(updates.weights), make_elements(updates.deltas)),
                  counted(updates.weights, updates.deltas))
            << n;
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
        EXPECT_EQ(of_updated(make_elements(updates.weights), make_elements(updated)), counted(updates.weights, deltas))
            << n;
      }
    }
  });
}

TEST(UpdateStagnation, AtTheEdgesOfFormats) {
  device_under_test().on_each_variant([] {
    const auto stagnant = [](float weight, float delta) {
      const UpdateStagnation found = of_deltas(make_elements<float>({weight}), make_elements<float>({delta}));
      return std::vector<int64_t>(std::begin(found.stagnant), std::end(found.stagnant));
    };
    using Counts = std::vector<int64_t>;  // fp32, bf16, fp16
    EXPECT_EQ(stagnant(1.0f, 0x1p-25f), (Counts{1, 1, 1}));
    EXPECT_EQ(stagnant(1.0f, -0x1p-24f), (Counts{0, 1, 1}));
    EXPECT_EQ(stagnant(-1.5f, 0x1p-11f), (Counts{0, 1, 0}));
    EXPECT_EQ(stagnant(1.0f, 0x1p-8f), (Counts{0, 0, 0}));
    EXPECT_EQ(stagnant(0.0f, 0x1p-149f), (Counts{0, 1, 1}));  // subnormals, the smallest of fp32 and far below fp16's
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
  EXPECT_EQ(read_record<UpdateStagnation>(record),
            (UpdateStagnation{.elements = 6, .zero = 2, .non_finite = 2, .stagnant = {2, 4, 2}}));
}

TEST(UpdateStagnation, TheSameBitsOnEverySchedule) {
  const Updates updates(device_under_test().large(140001));
  const Tensor weight = make_elements(updates.weights), delta = make_elements(updates.deltas);
  const UpdateStagnation expected = counted(updates.weights, updates.deltas);
  expect_same_bits_on_every_schedule([&] {
    const Tensor record = make_record(UpdateStagnation{});
    run(UpdateStagnationArgs{.weight = weight, .delta = delta, .record = record});
    EXPECT_EQ(read_record<UpdateStagnation>(record), expected);
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
