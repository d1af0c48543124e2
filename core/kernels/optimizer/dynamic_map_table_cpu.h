// Tables of the maps of core/quant/dynamic_map.h, for vector kernels.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/quant/dynamic_map.h"

namespace mantissa::cpu {

struct DynamicMapTable {
  // A cell holds the magnitudes with equal exponent and first 7 mantissa bits. Cells range from 2^-23, below all
  // thresholds, to 1. Each cell contains at most one threshold, so one comparison finds the position.
  static constexpr int32_t kFirstCell = std::bit_cast<int32_t>(0x1p-23f) >> 16;
  static constexpr int32_t kCells = (std::bit_cast<int32_t>(1.0f) >> 16) - kFirstCell + 1;

  std::array<int32_t, kCells> positions{};  // position of each cell's first magnitude
  std::array<float, 257> thresholds{};      // between position p and p + 1; infinity from the last position on
  std::array<float, 256> values{};          // decoded value, by code
};

const DynamicMapTable& dynamic_map_table(DynamicMap map);

}  // namespace mantissa::cpu
