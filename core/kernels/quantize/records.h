// Findings before a matrix is rounded, and the layout of its scales. Plain data.
#pragma once

#include <cstdint>

#include "core/quant/scales.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

// The findings of one pass over a matrix before it is rounded. A plain record on the matrix's device.
struct QuantizeRecord {
  int64_t non_finite = 0;  // NaN and Inf
  uint32_t amax = 0;       // magnitude_bits()
  uint32_t padding = 0;
  bool operator==(const QuantizeRecord&) const = default;
};

// The largest amax and the sum of the counts of records, each `stride` records after the previous one.
constexpr QuantizeRecord fold_records(const QuantizeRecord* records, int64_t count, int64_t stride) {
  QuantizeRecord total;
  for (int64_t i = 0; i < count; ++i) {
    const QuantizeRecord& record = records[i * stride];
    total.non_finite += record.non_finite;
    if (total.amax < record.amax) total.amax = record.amax;
  }
  return total;
}

// The direction of the blocks that share a scale. A product needs blocks along the dimension that it sums over.
enum class BlockAxis : uint8_t {
  kColumns,  // 1 x B: within a row
  kRows,     // B x 1
  kBoth,     // B x B
};

// The layout of the scales of codes with kBlock or kMicro.
constexpr BlockScaleLayout block_scale_layout(Scaling scaling, BlockAxis axis) {
  if (scaling == Scaling::kMicro) return BlockScaleLayout::kMicroTiles;
  return axis == BlockAxis::kBoth ? BlockScaleLayout::kSquareBlocks128 : BlockScaleLayout::kRowBlocks128;
}

}  // namespace mantissa
