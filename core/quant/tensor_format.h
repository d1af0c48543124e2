// TensorFormat: a low-precision format and the recipe of its scales. Plain data.
#pragma once

#include <compare>
#include <optional>
#include <string>

#include "core/base/round_up.h"
#include "core/tensor/format.h"

namespace mantissa {

// How many values share a scale, and where it comes from; formulas in core/quant/scales.h.
enum class Scaling : uint8_t {
  kDelayed,   // the tensor; amaxes of earlier steps
  kCurrent,   // the tensor; its own amax
  kBlock,     // 128 values, or 128 x 128; a power of two
  kMicro,     // 32 values; e8m0
  kTwoLevel,  // 16 values, or 16 x 16, in e4m3; also the tensor
};
inline constexpr Scaling kAllScalings[] = {Scaling::kDelayed, Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro,
                                           Scaling::kTwoLevel};

struct TensorFormat {
  Format format = Format::kE4M3;  // e4m3, e5m2 or e2m1
  Scaling scaling = Scaling::kCurrent;
  auto operator<=>(const TensorFormat&) const = default;
};

// Values in a block along a dimension; 0 if the tensor has one scale.
constexpr int64_t block_length(Scaling scaling) {
  constexpr int64_t kLengths[] = {0, 0, 128, 32, 16};
  return kLengths[static_cast<size_t>(scaling)];
}

// Whether the tensor as a whole has a scale; with kTwoLevel, its blocks have scales as well.
constexpr bool has_tensor_scale(Scaling scaling) { return scaling != Scaling::kBlock && scaling != Scaling::kMicro; }

// The value among `all` that has this name.
template <typename Enum, size_t kCount>
constexpr std::optional<Enum> find_named(const Enum (&all)[kCount], std::string_view text) {
  for (const Enum value : all) {
    if (name(value) == text) return value;
  }
  return std::nullopt;
}

// Names as in configurations.
inline constexpr std::string_view kScalingNames[] = {"delayed", "current", "block", "mxfp8", "nvfp4"};
constexpr std::string_view name(Scaling scaling) { return kScalingNames[static_cast<size_t>(scaling)]; }
inline std::optional<Scaling> parse_scaling(std::string_view text) { return find_named(kAllScalings, text); }
std::string name(TensorFormat format);  // "delayed:e4m3"

// Why the recipe does not support the format; else empty: e2m1 goes with kTwoLevel, e4m3 and e5m2 with the others.
std::string refusal(TensorFormat format);

// --- memory layout of the block scales of a matrix of 8-bit codes, as the units that multiply such matrices expect it.
// Blocks lie along the columns, the dimension that a product sums over. In a matrix (rows, columns), a block is columns
// [block * length, (block + 1) * length) of one row, or of 128 rows.
//
// Source: NVIDIA's documentation of cuBLAS, "Element 1D and 128x128 2D Block Scaling for FP8 Data Types" and "1D Block
// Scaling Factors Layout"; there `columns` is K, and `rows` is M or N.

enum class BlockScaleLayout : uint8_t {
  kRowBlocks128,     // 1 x 128, fp32: the first blocks of all rows, then the second ones, ...
  kSquareBlocks128,  // 128 x 128, fp32: row by row of blocks; each row is padded to a multiple of 4 blocks
  kMicroTiles,       // 1 x 32, e8m0: tiles of 128 rows x 4 blocks, row by row of tiles; rows and blocks are padded
};

inline constexpr int64_t kScaleTileRows = 128, kScaleTileBlocks = 4;  // the rows and blocks of a kMicroTiles tile
inline constexpr int64_t kSquareBlockPadding = 4;  // kSquareBlocks128 pads the blocks of a row to a multiple of this

// Columns in a block.
constexpr int64_t block_length(BlockScaleLayout layout) { return layout == BlockScaleLayout::kMicroTiles ? 32 : 128; }

// Blocks in a row; the last one may be shorter.
constexpr int64_t blocks_across(BlockScaleLayout layout, int64_t columns) {
  return divide_up(columns, block_length(layout));
}

// Number of scales of a matrix (rows, columns), padding included.
constexpr int64_t block_scale_count(BlockScaleLayout layout, int64_t rows, int64_t columns) {
  const int64_t blocks = blocks_across(layout, columns);
  if (layout == BlockScaleLayout::kRowBlocks128) return rows * blocks;
  if (layout == BlockScaleLayout::kMicroTiles) {
    return round_up(rows, kScaleTileRows) * round_up(blocks, kScaleTileBlocks);
  }
  return round_up(rows, 128) / 128 * round_up(blocks, kSquareBlockPadding);
}

// Index of the scale of block number `block` in row `row`; `row` counts rows of the matrix, not of blocks.
constexpr int64_t block_scale_index(BlockScaleLayout layout, int64_t rows, int64_t columns, int64_t row,
                                    int64_t block) {
  const int64_t blocks = blocks_across(layout, columns);
  if (layout == BlockScaleLayout::kRowBlocks128) return block * rows + row;
  if (layout == BlockScaleLayout::kSquareBlocks128) return row / 128 * round_up(blocks, kSquareBlockPadding) + block;
  // Within a tile, the scales of rows 32 apart are neighbours.
  const int64_t tile =
      row / kScaleTileRows * (round_up(blocks, kScaleTileBlocks) / kScaleTileBlocks) + block / kScaleTileBlocks;
  const int64_t in_tile = row % 32 * 16 + row % kScaleTileRows / 32 * kScaleTileBlocks + block % kScaleTileBlocks;
  return tile * (kScaleTileRows * kScaleTileBlocks) + in_tile;
}

}  // namespace mantissa
