// Codes of moments, and their encoding from values that arrive in pieces of any size and order.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/optimizer_state.h"
#include "core/backend/registry.h"
#include "core/quant/dynamic_map.h"
#include "core/tensor/philox.h"
#include "tests/reference/dynamic_map.h"

namespace mantissa {
namespace moment_blocks_test {

struct Codes {
  std::vector<uint8_t> codes;
  std::vector<float> absmax;
  bool operator==(const Codes&) const = default;
};

size_t blocks_of(size_t count) { return (count + kDynamicBlock - 1) / kDynamicBlock; }

Codes encoded(DynamicMap map, const std::vector<float>& values) {
  Codes result{std::vector<uint8_t>(values.size()), std::vector<float>(blocks_of(values.size()))};
  encode_blocks(map, values, result.codes, result.absmax);
  return result;
}

// Values over several decades; both signs for the signed map.
std::vector<float> moments(DynamicMap map, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const PhiloxCounter words = philox(9, {static_cast<uint32_t>(i), 0, 0, 0});
    values[i] = std::exp(-12.0f * uniform01(words[0]));
    if (map == DynamicMap::kSigned && words[1] % 2 == 1) values[i] = -values[i];
    if (words[2] % 17 == 0) values[i] = 0.0f;
  }
  return values;
}

class MomentBlocksTest : public ::testing::TestWithParam<DynamicMap> {};

TEST_P(MomentBlocksTest, CodesAreTheNearestOfTheMap) {
  const auto sign = GetParam() == DynamicMap::kSigned ? reference::MapSign::kSigned : reference::MapSign::kUnsigned;
  const std::vector<float> values = moments(GetParam(), 3 * kDynamicBlock + 77);
  const Codes found = encoded(GetParam(), values);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto begin = static_cast<int64_t>(i) / kDynamicBlock * kDynamicBlock;
    const int64_t end = std::min(begin + kDynamicBlock, static_cast<int64_t>(values.size()));
    float absmax = 0.0f;
    for (int64_t k = begin; k < end; ++k) absmax = std::max(absmax, std::abs(values[static_cast<size_t>(k)]));
    ASSERT_EQ(found.absmax[i / kDynamicBlock], absmax);
    const double value = static_cast<double>(dynamic_value(GetParam(), found.codes[i])) * static_cast<double>(absmax);
    const double nearest = reference::through_dynamic_map(sign, static_cast<double>(values[i]), absmax);
    ASSERT_NEAR(value, nearest, 1e-6 * static_cast<double>(absmax)) << i << ": " << values[i];
  }
}

TEST_P(MomentBlocksTest, ABlockOfZerosIsZeroAndOneWithNanIsNan) {
  std::vector<float> values(3 * kDynamicBlock, 0.0f);
  values[kDynamicBlock + 3] = std::numeric_limits<float>::quiet_NaN();
  values[2 * kDynamicBlock + 200] = 2.0f;
  const Codes found = encoded(GetParam(), values);
  EXPECT_EQ(found.absmax[0], 0.0f);
  EXPECT_TRUE(std::isnan(found.absmax[1]));
  EXPECT_EQ(found.absmax[2], 2.0f);
  EXPECT_EQ(std::count(found.codes.begin(), found.codes.end(), 0), 3 * kDynamicBlock - 1);
}

TEST_P(MomentBlocksTest, PiecesOfAnySizeInAnyOrderGiveTheSameCodes) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  const std::vector<float> values = moments(GetParam(), 5 * kDynamicBlock + 130);
  const Codes expected = encoded(GetParam(), values);
  const auto count = static_cast<int64_t>(values.size());
  for (const int64_t length :
       {int64_t{1}, int64_t{64}, int64_t{100}, int64_t{256}, int64_t{300}, int64_t{700}, count}) {
    for (const bool backwards : {false, true}) {
      const Tensor codes = backend->make_tensor(DType::kU8, {count}, "codes");
      const Tensor absmax = backend->make_tensor(DType::kF32, {static_cast<int64_t>(expected.absmax.size())}, "absmax");
      std::vector<int64_t> begins;
      for (int64_t begin = 0; begin < count; begin += length) begins.push_back(begin);
      if (backwards) std::reverse(begins.begin(), begins.end());
      MomentBlocks blocks;
      for (const int64_t begin : begins) {
        const std::span<const float> all(values);
        const auto part = all.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(length, count - begin)));
        blocks.add(part, begin, GetParam(), codes, absmax, *backend, *stream);
      }
      Codes found{std::vector<uint8_t>(values.size()), std::vector<float>(expected.absmax.size())};
      backend->download(codes, found.codes.data(), *stream);
      backend->download(absmax, found.absmax.data(), *stream);
      EXPECT_EQ(found, expected) << "pieces of " << length;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Maps, MomentBlocksTest, ::testing::Values(DynamicMap::kSigned, DynamicMap::kUnsigned));

}  // namespace moment_blocks_test
}  // namespace mantissa
