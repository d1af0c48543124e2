// The maps of core/quant/dynamic_map.h as tables for vectors.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/quant/dynamic_map.h"

namespace mantissa::cpu {

struct DynamicMapTable {
  // A cell is the magnitudes that share their exponent and the first 7 bits of their mantissa, from 2^-23, below all
  // thresholds, to 1. There is at most one threshold in it, so that one comparison tells the position.
  static constexpr int32_t kFirstCell = std::bit_cast<int32_t>(0x1p-23f) >> 16;
  static constexpr int32_t kCells = (std::bit_cast<int32_t>(1.0f) >> 16) - kFirstCell + 1;

  std::array<int32_t, kCells> positions{};  // of each cell's first magnitude
  std::array<float, 257> thresholds{};      // between position p and the next one; infinity from the last one on
  std::array<float, 256> values{};          // by code
};

const DynamicMapTable& dynamic_map_table(DynamicMap map);

}  // namespace mantissa::cpu
