// How the blocks of an attention kernel are laid over sequences, heads and positions.
#pragma once

#include "core/base/check.h"
#include "core/cuda/device/device.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

// What one block works on: a piece of the positions of one head.
struct HeadPiece {
  int piece, head, b;
};

constexpr int pieces_of(int64_t positions, int piece_positions) {
  return static_cast<int>((positions + piece_positions - 1) / piece_positions);
}

// The grid whose blocks head_piece() tells apart.
inline unsigned head_pieces_grid(const char* op, int64_t pieces, int64_t heads, int64_t batch) {
  constexpr int64_t kMaxBlocks = 0x7fffffff;
  MANTISSA_CHECK(
      pieces * heads * batch <= kMaxBlocks,
      "[{}] {} pieces x {} heads x {} sequences are more than the {} blocks of one launch: use a smaller batch", op,
      pieces, heads, batch, kMaxBlocks);
  return static_cast<unsigned>(pieces * heads * batch);
}

// Pieces of one head run next to each other, so that its keys and values stay in the second-level cache meanwhile.
__device__ __forceinline__ HeadPiece head_piece(int pieces, int64_t heads) {
  const unsigned head_index = blockIdx.x / static_cast<unsigned>(pieces);
  return {.piece = static_cast<int>(blockIdx.x % static_cast<unsigned>(pieces)),
          .head = static_cast<int>(head_index % static_cast<unsigned>(heads)),
          .b = static_cast<int>(head_index / static_cast<unsigned>(heads))};
}

}  // namespace mantissa::cuda
