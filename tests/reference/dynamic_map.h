// The dynamic maps of 8-bit moments after Dettmers et al. 2021, in double. Each of seven decades, from a tenth of its
// end to its end, has the midpoints of equal intervals; then 0 and 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace mantissa::reference {

enum class MapSign : uint8_t { kSigned, kUnsigned };

// All 256 values, ascending.
inline std::vector<double> dynamic_map(MapSign sign) {
  std::vector<double> values = {0.0, 1.0};
  for (int decade = 0; decade < 7; ++decade) {
    const double top = std::pow(10.0, decade - 6);
    const int intervals = (sign == MapSign::kSigned ? 1 : 2) << decade;
    for (int i = 0; i < intervals; ++i) {
      const double low = 0.1 + 0.9 * i / intervals, high = 0.1 + 0.9 * (i + 1) / intervals;
      values.push_back(top * (low + high) / 2.0);
      if (sign == MapSign::kSigned) values.push_back(-values.back());
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

// `value` after a round trip through a block with this absmax > 0: the nearest of the map's values times absmax. In the
// unsigned map a nonzero value does not become 0.
inline double through_dynamic_map(MapSign sign, double value, double absmax) {
  static const std::vector<double> maps[] = {dynamic_map(MapSign::kSigned), dynamic_map(MapSign::kUnsigned)};
  double best = 2.0;
  for (const double candidate : maps[static_cast<int>(sign)]) {
    if (sign == MapSign::kUnsigned && value != 0.0 && candidate == 0.0) continue;
    if (std::abs(candidate - value / absmax) < std::abs(best - value / absmax)) best = candidate;
  }
  return best * absmax;
}

}  // namespace mantissa::reference
