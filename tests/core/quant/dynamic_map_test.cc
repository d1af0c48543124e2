// Every code of the dynamic maps, against maps computed in another way.
#include "core/quant/dynamic_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/tensor/philox.h"
#include "tests/reference/dynamic_map.h"

namespace mantissa {
namespace {

using reference::MapSign;

constexpr std::pair<DynamicMap, MapSign> kMaps[] = {{DynamicMap::kSigned, MapSign::kSigned},
                                                    {DynamicMap::kUnsigned, MapSign::kUnsigned}};

std::vector<float> thresholds_of(DynamicMap map) {
  std::vector<float> thresholds;
  for (int position = 0; position < last_position(map); ++position) {
    thresholds.push_back(dynamic_threshold(map, position));
  }
  return thresholds;
}

TEST(DynamicMap, HoldsTheValuesOfThePaperRoundedOnce) {
  for (const auto& [map, sign] : kMaps) {
    std::multiset<float> found, expected;
    for (int code = 0; code < 256; ++code) found.insert(dynamic_value(map, static_cast<uint8_t>(code)));
    for (const double value : reference::dynamic_map(sign)) expected.insert(static_cast<float>(value));
    EXPECT_EQ(found, expected);
  }
}

TEST(DynamicMap, CodeZeroIsZeroAndOneIsAmongThem) {
  for (const auto& [map, sign] : kMaps) {
    EXPECT_EQ(dynamic_value(map, 0), 0.0f);
    EXPECT_EQ(dynamic_value(map, static_cast<uint8_t>(last_position(map))), 1.0f);
  }
}

TEST(DynamicMap, EveryCodeComesBack) {
  for (const auto& [map, sign] : kMaps) {
    const std::vector<float> thresholds = thresholds_of(map);
    for (const float absmax : {1.0f, 0.37f, 1e-30f, 3e38f}) {
      for (int code = 0; code < 256; ++code) {
        const float value = dynamic_value(map, static_cast<uint8_t>(code)) * absmax;
        EXPECT_EQ(encode_dynamic(map, value, absmax, thresholds.data()), code) << absmax;
      }
    }
  }
}

// Within the roundings of a threshold, of a quotient and of the map: 2^-23 of the magnitudes.
TEST(DynamicMap, EncodesToTheNearestValue) {
  for (const auto& [map, sign] : kMaps) {
    const std::vector<float> thresholds = thresholds_of(map);
    for (uint32_t i = 0; i < 20000; ++i) {
      const PhiloxCounter words = philox(5, {i, 0, 0, 0});
      const double decades = -8.0 * static_cast<double>(words[0]) * 0x1p-32;
      const bool negative = map == DynamicMap::kSigned && (words[1] & 1) != 0;
      const auto value = static_cast<float>((negative ? -2.5 : 2.5) * std::pow(10.0, decades));
      const uint8_t code = encode_dynamic(map, value, 2.5f, thresholds.data());
      const double wide = static_cast<double>(value), found = 2.5 * static_cast<double>(dynamic_value(map, code));
      const double nearest = reference::through_dynamic_map(sign, wide, 2.5);
      EXPECT_LE(std::abs(found - wide), std::abs(nearest - wide) + 0x1p-23 * (std::abs(wide) + std::abs(found)))
          << value;
    }
  }
}

TEST(DynamicMap, AThresholdBelongsToTheLargerValue) {
  for (const auto& [map, sign] : kMaps) {
    const std::vector<float> thresholds = thresholds_of(map);
    for (int position = 1; position < last_position(map); ++position) {
      const float threshold = thresholds[static_cast<size_t>(position)];
      EXPECT_EQ(encode_dynamic(map, threshold, 1.0f, thresholds.data()), position + 1);
      EXPECT_EQ(encode_dynamic(map, std::nextafter(threshold, 0.0f), 1.0f, thresholds.data()), position);
    }
  }
}

TEST(DynamicMap, ASecondMomentThatIsNotZeroDoesNotBecomeZero) {
  const std::vector<float> of_v = thresholds_of(DynamicMap::kUnsigned), of_m = thresholds_of(DynamicMap::kSigned);
  EXPECT_EQ(encode_dynamic(DynamicMap::kUnsigned, 1e-12f, 1.0f, of_v.data()), 1);
  EXPECT_EQ(encode_dynamic(DynamicMap::kUnsigned, 1e-45f, 3e38f, of_v.data()), 1) << "though the quotient is 0";
  EXPECT_EQ(encode_dynamic(DynamicMap::kUnsigned, 0.0f, 1.0f, of_v.data()), 0);
  EXPECT_EQ(encode_dynamic(DynamicMap::kSigned, 1e-12f, 1.0f, of_m.data()), 0);
}

TEST(DynamicMap, BlocksWithoutAScaleHaveCodesOfZero) {
  for (const auto& [map, sign] : kMaps) {
    const std::vector<float> thresholds = thresholds_of(map);
    for (const float absmax : {0.0f, INFINITY, NAN}) {
      for (const float value : {0.0f, 1.0f, INFINITY, NAN}) {
        EXPECT_EQ(encode_dynamic(map, value, absmax, thresholds.data()), 0);
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
