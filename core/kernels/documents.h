// Documents in packed sequences: the optional operand `starts` of embedding, RoPE and attention.
//
// starts (R) i32, R = B * T: the index, within its sequence, of the first token of the row's document. It is that of
// the row before, or the row's own index, where a document begins. Undefined: each sequence is one document.
//
// Embedding and RoPE also take negative starts in their forward passes: a document that began so many tokens before its
// sequence, where a text is continued whose earlier tokens are in a cache.
#pragma once

#include <algorithm>

#include "core/kernels/check_args.h"

namespace mantissa {

// Position of a row in its document. `starts` may be null.
constexpr int64_t position_in_document(const int32_t* starts, int64_t row, int64_t sequence_length) {
  return row % sequence_length - (starts == nullptr ? 0 : starts[row]);
}

inline void check_starts(const char* op, const Tensor& starts, int64_t rows, int64_t sequence_length) {
  if (!starts.defined()) return;
  check_tensor(op, "starts", starts, DType::kI32, rows);
  MANTISSA_CHECK(sequence_length > 0, "[{}] starts need a positive sequence_length, got {}", op, sequence_length);
}

// Where documents may begin.
enum class DocumentStart : uint8_t { kInside, kAlsoBefore };

// Reads host memory. Other values would reach foreign memory. Returns the largest position + 1, without
// starts the sequence_length.
inline int64_t check_start_values(const char* op, const Tensor& starts, int64_t sequence_length,
                                  DocumentStart allowed = DocumentStart::kInside) {
  if (!starts.defined()) return sequence_length;
  const int32_t* const data = starts.data<int32_t>();
  int64_t positions = 0;
  for (int64_t row = 0; row < starts.numel(); ++row) {
    const int64_t t = row % sequence_length;
    const bool began_before = allowed == DocumentStart::kAlsoBefore && t == 0 && data[row] < 0;
    MANTISSA_CHECK(began_before || data[row] == t || (t > 0 && data[row] == data[row - 1]),
                   "[{}] starts must repeat the row before or be the row's index in its sequence, {}, got {} in row {}",
                   op, t, data[row], row);
    positions = std::max(positions, t - data[row] + 1);
  }
  return positions;
}

}  // namespace mantissa
