// AdamW moments as 8-bit codes: every code is read and written like in the scalar form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/kernels/optimizer/args.h"
#include "core/quant/dynamic_map.h"
#include "tests/core/kernels/optimizer/adamw_states.h"

namespace mantissa::kernel_test {
namespace {

constexpr StateFormat kCodes{DType::kU8, DType::kU8, WeightState::kMaster};

std::vector<float> thresholds_of(DynamicMap map) {
  std::vector<float> thresholds;
  thresholds.reserve(static_cast<size_t>(last_position(map)));
  for (int position = 0; position < last_position(map); ++position) {
    thresholds.push_back(dynamic_threshold(map, position));
  }
  return thresholds;
}

float absmax_of(const std::vector<float>& values, size_t block) {
  float absmax = 0.0f;
  for (size_t i = block * kDynamicBlock; i < std::min(values.size(), (block + 1) * size_t{kDynamicBlock}); ++i) {
    absmax = std::max(absmax, std::abs(values[i]));
  }
  return absmax;
}

// With b1 = b2 = 0 and no unscaling, the moments of a gradient g are exactly g and g^2 in fp32.
AdamWArgs fresh_moments(const std::vector<float>& gradient) {
  AdamWArgs args = make_state(static_cast<int64_t>(gradient.size()), kCodes,
                              {.learning_rate = 1e-3f, .bias_correction1 = 1.0f, .bias_correction2 = 1.0f});
  args.beta1 = args.beta2 = 0.0f;
  args.gradient = make_elements(gradient);
  return args;
}

void expect_codes(const AdamWArgs& args, const std::vector<float>& gradient) {
  std::vector<float> square;
  square.reserve(gradient.size());
  for (const float g : gradient) square.push_back(g * g);
  for (const auto& [map, moment, absmax, values] : {std::tuple(DynamicMap::kSigned, args.m, args.m_absmax, gradient),
                                                    {DynamicMap::kUnsigned, args.v, args.v_absmax, square}}) {
    const std::vector<uint8_t> codes = elements_of<uint8_t>(moment);
    const std::vector<float> scales = elements_of<float>(absmax), thresholds = thresholds_of(map);
    for (size_t i = 0; i < values.size(); ++i) {
      const float scale = absmax_of(values, i / kDynamicBlock);
      ASSERT_EQ(scales[i / kDynamicBlock], scale);
      ASSERT_EQ(codes[i], encode_dynamic(map, values[i], scale, thresholds.data())) << i << ": " << values[i];
    }
  }
}

TEST(AdamWCodes, AreWrittenAsTheScalarFormHasThem) {
  on_each_variant_and_placement([] {
    for (const int64_t n : {1, 3, 255, 256, 257, 700, 2600}) {
      std::vector<float> gradient;
      for (uint32_t i = 0; i < n; ++i) {
        const PhiloxCounter words = philox(8, {i, 0, 0, 0});
        const auto magnitude = static_cast<float>(std::pow(10.0, -9.0 * static_cast<double>(words[0]) * 0x1p-32));
        gradient.push_back(words[1] % 16 == 0 ? 0.0f : (words[1] & 64) != 0 ? magnitude : -magnitude);
      }
      const AdamWArgs args = fresh_moments(gradient);
      run(args);
      expect_codes(args, gradient);
    }
  });
}

// Every threshold of the signed map and its neighbours, in blocks with absmax 1: the code changes there.
TEST(AdamWCodes, ChangeAtTheThresholds) {
  on_each_variant_and_placement([] {
    std::vector<float> gradient;
    for (const float threshold : thresholds_of(DynamicMap::kSigned)) {
      for (const float value : {threshold, std::nextafter(threshold, 0.0f), std::nextafter(threshold, 1.0f)}) {
        if (gradient.size() % kDynamicBlock == 0) gradient.push_back(1.0f);
        gradient.push_back(gradient.size() % 2 == 0 ? value : -value);
      }
    }
    const AdamWArgs args = fresh_moments(gradient);
    run(args);
    expect_codes(args, gradient);
  });
}

// With b1 = b2 = 1 and no gradient nothing changes, but every code is decoded and encoded again.
TEST(AdamWCodes, ComeBackFromAnUpdateThatChangesNothing) {
  on_each_variant_and_placement([] {
    constexpr int64_t kSize = 1024;
    AdamWArgs args = make_state(kSize, kCodes);
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < kSize; ++i) codes.push_back(static_cast<uint8_t>(i));  // all codes in each block
    args.m = make_elements(codes);
    args.v = make_elements(codes);
    args.gradient = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, 0.0));
    args.beta1 = args.beta2 = 1.0f;
    const std::vector<std::byte> m = bytes_of(args.m), v = bytes_of(args.v), m_absmax = bytes_of(args.m_absmax),
                                 v_absmax = bytes_of(args.v_absmax);
    run(args);
    EXPECT_EQ(bytes_of(args.m), m);
    EXPECT_EQ(bytes_of(args.v), v);
    EXPECT_EQ(bytes_of(args.m_absmax), m_absmax);
    EXPECT_EQ(bytes_of(args.v_absmax), v_absmax);
  });
}

// A moment is off by at most half of the largest interval in its decade: 0.45 / 64 of absmax if signed (next to -1,
// which has no code, also 0.9 / 128), 0.45 / 128 if unsigned.
TEST(AdamWCodes, KeepMomentsToHalfAnInterval) {
  device_under_test().on_each_variant([] {
    const AdamWArgs args = make_state(700, kCodes), wide = [&] {
      AdamWArgs wide = args;
      wide.m = make_tensor(DType::kF32, {700}, moment_values(DynamicMap::kSigned, args.m, args.m_absmax));
      wide.v = make_tensor(DType::kF32, {700}, moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax));
      wide.m_absmax = wide.v_absmax = {};
      wide.master = make_tensor(DType::kF32, {700}, values_of(args.master));
      wide.weight = {};
      return wide;
    }();
    run(args);
    run(wide);
    const auto near = [](const std::vector<double>& found, const std::vector<double>& exact, double part) {
      for (size_t i = 0; i < found.size(); ++i) {
        double absmax = 0.0;
        const size_t begin = i / kDynamicBlock * kDynamicBlock;
        for (size_t k = begin; k < std::min(found.size(), begin + kDynamicBlock); ++k) {
          absmax = std::max(absmax, std::abs(exact[k]));
        }
        ASSERT_NEAR(found[i], exact[i], part * absmax * 1.001) << i;
      }
    };
    near(moment_values(DynamicMap::kSigned, args.m, args.m_absmax), values_of(wide.m), 0.45 / 64);
    near(moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax), values_of(wide.v), 0.45 / 128);
  });
}

TEST(AdamWCodes, PartsThatAreWholeBlocksGiveTheCodesOfTheWhole) {
  on_each_variant_and_placement([] {
    const AdamWArgs whole = make_state(700, kCodes), same = make_state(700, kCodes);
    run(whole);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {256, 256}, {512, 188}}) {
      AdamWArgs part = same;
      const int64_t block = begin / kDynamicBlock, blocks = (count + kDynamicBlock - 1) / kDynamicBlock;
      for (Tensor* tensor : {&part.gradient, &part.master, &part.weight, &part.m, &part.v}) {
        *tensor = tensor->slice(begin, count);
      }
      part.m_absmax = part.m_absmax.slice(block, blocks);
      part.v_absmax = part.v_absmax.slice(block, blocks);
      part.first_element += begin;
      run(part);
    }
    EXPECT_EQ(bytes_of(same), bytes_of(whole));
  });
}

TEST(AdamWCodes, ANaNGradientStaysWithinItsBlock) {
  device_under_test().on_each_variant([] {
    const AdamWArgs args = make_state(700, kCodes);
    set_element(args.gradient, 300, NAN);
    run(args);
    const std::vector<double> m = moment_values(DynamicMap::kSigned, args.m, args.m_absmax),
                              v = moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax),
                              w = values_of(args.master);
    for (size_t i = 0; i < 700; ++i) {
      EXPECT_EQ(std::isnan(m[i]), i / kDynamicBlock == 1) << i;
      EXPECT_EQ(std::isnan(v[i]), i / kDynamicBlock == 1) << i;
      EXPECT_EQ(std::isnan(w[i]), i == 300) << i;
    }
  });
}

// A second moment of 0 with a nonzero first one would make the update divide by epsilon alone.
TEST(AdamWCodes, SmallSecondMomentsDoNotVanish) {
  device_under_test().on_each_variant([] {
    std::vector<float> gradient(256, 1e-5f);
    gradient[0] = 1.0f;
    const AdamWArgs args = fresh_moments(gradient);
    run(args);
    for (const double v : moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax)) EXPECT_GE(v, 3e-7);
  });
}

}  // namespace
}  // namespace mantissa::kernel_test
