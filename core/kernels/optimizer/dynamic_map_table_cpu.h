// Tables of the maps of core/quant/dynamic_map.h, for vector kernels.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/quant/dynamic_map.h"

namespace mantissa::cpu {

struct DynamicMapTable {
  // A cell holds the magnitudes with equal exponent and first 7 mantissa bits. Cells range from 2^-23, below all
  // thresholds, to 1. A cell contains at most one threshold, so a single comparison finds the position.
  static constexpr int32_t kFirstCell = std::bit_cast<int32_t>(0x1p-23f) >> 16;
  static constexpr int32_t kCells = (std::bit_cast<int32_t>(1.0f) >> 16) - kFirstCell + 1;

  std::array<int32_t, kCells> positions{};  // position of each cell's first magnitude
  std::array<float, 257> thresholds{};      // between position p and p + 1; infinity from the last position on
  std::array<float, 256> values{};          // decoded value, by code
};

inline DynamicMapTable make_dynamic_map_table(DynamicMap map) {
  DynamicMapTable table;
  table.thresholds.fill(std::numeric_limits<float>::infinity());
  const int last = last_position(map);
  for (int position = 0; position < last; ++position) {
    table.thresholds[static_cast<size_t>(position)] = dynamic_threshold(map, position);
  }
  for (int32_t cell = 0; cell < DynamicMapTable::kCells; ++cell) {
    const auto first = std::bit_cast<float>((DynamicMapTable::kFirstCell + cell) << 16);
    table.positions[static_cast<size_t>(cell)] = nearest_position(map, first, table.thresholds.data());
  }
  for (int code = 0; code < 256; ++code) {
    table.values[static_cast<size_t>(code)] = dynamic_value(map, static_cast<uint8_t>(code));
  }
  return table;
}

inline const DynamicMapTable& dynamic_map_table(DynamicMap map) {
  static const DynamicMapTable signed_table = make_dynamic_map_table(DynamicMap::kSigned),
                               unsigned_table = make_dynamic_map_table(DynamicMap::kUnsigned);
  return map == DynamicMap::kSigned ? signed_table : unsigned_table;
}

}  // namespace mantissa::cpu
