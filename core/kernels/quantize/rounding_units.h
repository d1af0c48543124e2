// The division of a matrix into units whose values are rounded with one multiplier: the blocks of its format or, for a
// tensor with one scale, pieces of any size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/kernels/quantize/args.h"

namespace mantissa {

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
