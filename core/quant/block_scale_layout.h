// Where the scales of the blocks of a matrix of 8-bit codes lie for the units that multiply such matrices. Blocks lie
// along the columns, which a product sums over: of the matrix (rows, columns) a block is columns
// [block * length, (block + 1) * length) of a row, or of 128 rows.
//
// Source: NVIDIA's documentation of cuBLAS, "Element 1D and 128x128 2D Block Scaling for FP8 Data Types" and "1D Block
// Scaling Factors Layout"; there `columns` is K, and `rows` is M or N.
#pragma once

#include <cstdint>

#include "core/base/round_up.h"

namespace mantissa {

enum class BlockScaleLayout : uint8_t {
  kRowBlocks128,     // of 1 x 128, fp32: all rows' first blocks, then all rows' second ones ...
  kSquareBlocks128,  // of 128 x 128, fp32: row by row of blocks, each padded to a multiple of 4
  kMicroTiles,       // of 1 x 32, e8m0: tiles of 128 rows x 4 blocks, row by row of tiles; both are padded
};

// Rows and blocks of a tile of kMicroTiles.
inline constexpr int64_t kScaleTileRows = 128, kScaleTileBlocks = 4;
// Blocks of kSquareBlocks128 side by side are padded to a multiple of this.
inline constexpr int64_t kSquareBlockPadding = 4;

// Columns of a block.
constexpr int64_t block_length(BlockScaleLayout layout) { return layout == BlockScaleLayout::kMicroTiles ? 32 : 128; }

// Blocks side by side, the last of which may be shorter.
constexpr int64_t blocks_across(BlockScaleLayout layout, int64_t columns) {
  return (columns + block_length(layout) - 1) / block_length(layout);
}

// Elements of the scales of a matrix (rows, columns), padding included.
constexpr int64_t block_scale_count(BlockScaleLayout layout, int64_t rows, int64_t columns) {
  const int64_t blocks = blocks_across(layout, columns);
  switch (layout) {
    case BlockScaleLayout::kRowBlocks128:
      return rows * blocks;
    case BlockScaleLayout::kSquareBlocks128:
      return round_up(rows, 128) / 128 * round_up(blocks, kSquareBlockPadding);
    case BlockScaleLayout::kMicroTiles:
      return round_up(rows, kScaleTileRows) * round_up(blocks, kScaleTileBlocks);
  }
  return 0;
}

// The element that holds the scale of the block with this number in this row of the matrix (not of blocks).
constexpr int64_t block_scale_index(BlockScaleLayout layout, int64_t rows, int64_t columns, int64_t row,
                                    int64_t block) {
  const int64_t blocks = blocks_across(layout, columns);
  switch (layout) {
    case BlockScaleLayout::kRowBlocks128:
      return block * rows + row;
    case BlockScaleLayout::kSquareBlocks128:
      return row / 128 * round_up(blocks, kSquareBlockPadding) + block;
    case BlockScaleLayout::kMicroTiles: {
      // Within a tile, the scales of rows 32 apart are neighbours.
      const int64_t tile =
          row / kScaleTileRows * (round_up(blocks, kScaleTileBlocks) / kScaleTileBlocks) + block / kScaleTileBlocks;
      const int64_t in_tile = row % 32 * 16 + row % kScaleTileRows / 32 * kScaleTileBlocks + block % kScaleTileBlocks;
      return tile * (kScaleTileRows * kScaleTileBlocks) + in_tile;
    }
  }
  return 0;
}

}  // namespace mantissa
