// Findings before a matrix is rounded, its division into units, and the layout of its scales. Plain data.
#pragma once

#include <algorithm>
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

// The division of a matrix into units whose values are rounded with one multiplier: the blocks of its format or, for a
// tensor with one scale, pieces of any size.
struct RoundingUnits {
  static constexpr int64_t kPieceElements = 1024;

  int64_t rows = 0, columns = 0;            // of the matrix
  int64_t unit_rows = 1, unit_columns = 1;  // those at the ends may be smaller
  int64_t across = 0, count = 0;            // units in a row of units; all units

  struct Unit {
    int64_t row, column, rows, columns;
  };
  // The unit `index`, counted row by row.
  constexpr Unit at(int64_t index) const {
    const int64_t row = index / across * unit_rows, column = index % across * unit_columns;
    return {row, column, std::min(unit_rows, rows - row), std::min(unit_columns, columns - column)};
  }
};

constexpr RoundingUnits rounding_units(TensorFormat format, BlockAxis axis, int64_t rows, int64_t columns) {
  const int64_t block = block_length(format.scaling);
  RoundingUnits units{.rows = rows, .columns = columns, .unit_rows = 1, .unit_columns = 1, .across = 0, .count = 0};
  if (block == 0) {  // a row of all elements
    units.rows = 1, units.columns = rows * columns;
    units.unit_columns = RoundingUnits::kPieceElements;
  } else {
    if (axis != BlockAxis::kColumns) units.unit_rows = block;
    if (axis != BlockAxis::kRows) units.unit_columns = block;
  }
  units.across = (units.columns + units.unit_columns - 1) / units.unit_columns;
  units.count = units.across * ((units.rows + units.unit_rows - 1) / units.unit_rows);
  return units;
}

}  // namespace mantissa
