// The blocks of an attention kernel: their place among sequences, heads and positions, and common operands.
#pragma once

#include "core/base/check.h"
#include "core/cuda/device/device.h"
#include "core/kernels/attention/device_cuda.h"

namespace mantissa::cuda {

// exp(x) = 2^(x * kLog2E): the hardware has powers of two.
constexpr float kLog2E = 1.4426950408889634f;  // log2(e)

// The piece of a head's positions that a block processes.
struct HeadPiece {
  int piece, head, b;
};

constexpr int pieces_of(int64_t positions, int piece_positions) {
  return static_cast<int>((positions + piece_positions - 1) / piece_positions);
}

// The number of blocks of a launch in which head_piece() gives each block its piece of `piece_positions`.
inline unsigned head_pieces_grid(const char* op, const AttentionShape& shape, int64_t heads, int piece_positions) {
  constexpr int64_t kMaxBlocks = 0x7fffffff;
  const int64_t pieces = pieces_of(shape.sequence_length, piece_positions), batch = shape.batch;
  MANTISSA_CHECK(pieces * heads * batch <= kMaxBlocks,
                 "[{}] {} pieces x {} heads x {} sequences exceed the {} blocks of one launch: use a smaller batch", op,
                 pieces, heads, batch, kMaxBlocks);
  return static_cast<unsigned>(pieces * heads * batch);
}

// Pieces of a head run next to each other, so that its keys and values stay in the second-level cache.
__device__ __forceinline__ HeadPiece head_piece(int pieces, int64_t heads) {
  const unsigned head_index = blockIdx.x / static_cast<unsigned>(pieces);
  return {.piece = static_cast<int>(blockIdx.x % static_cast<unsigned>(pieces)),
          .head = static_cast<int>(head_index % static_cast<unsigned>(heads)),
          .b = static_cast<int>(head_index / static_cast<unsigned>(heads))};
}

// Positions [begin, end) of a sequence, among them all keys that its queries see.
struct Document {
  int begin, end;
};

// The document of position `at`. `starts` (T) belongs to the sequence; null: all of it is one document.
__device__ __forceinline__ Document document_at(const int32_t* starts, int at, int length) {
  if (starts == nullptr) return {0, length};
  const int begin = starts[at];
  int low = at + 1, high = length;  // bounds of the first position that has another start: starts ascend
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (starts[middle] == begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {begin, low};
}

// Calls body(first, end, document) for the positions of a piece, document by document: [first, end) belong to it.
// `starts` (B, T) may be null.
template <typename Body>
__device__ __forceinline__ void for_each_document(const int32_t* starts, const HeadPiece& at, int piece_positions,
                                                  const AttentionShape& shape, const Body& body) {
  const int length = static_cast<int>(shape.sequence_length);
  const int32_t* const of_sequence = starts == nullptr ? nullptr : starts + at.b * shape.sequence_length;
  const int piece_end = std::min(length, (at.piece + 1) * piece_positions);
  for (int first = at.piece * piece_positions, end = 0; first < piece_end; first = end) {
    const Document document = document_at(of_sequence, first, length);
    end = std::min(piece_end, document.end);
    body(first, end, document);
  }
}

// Maximum for reductions. It ignores NaN, which shows in the probabilities.
struct NumberMax {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T>
struct AttentionBackwardOperands {
  const T* qkv;
  const int32_t* starts;  // (B, T), null for none
  const T* d_out;
  T* d_qkv;
  AttentionRowTerms terms;
};

template <typename T>
AttentionBackwardOperands<T> backward_operands(const AttentionBackwardArgs& args, const AttentionRowTerms& terms) {
  return {args.qkv.data<T>(), data_or_null<int32_t>(args.starts), args.d_out.data<T>(), args.d_qkv.data<T>(), terms};
}

}  // namespace mantissa::cuda
