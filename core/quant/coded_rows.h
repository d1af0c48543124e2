// Rows of numbers in 8-bit codes with block scales, as gradients travel between ranks: the codes of n numbers, then the
// scale (E8M0) of each 32 of them, then bytes without meaning up to a multiple of 64. So codes and scales are a single
// message, and rows stay aligned.
//
// A scale is microscale() of the largest finite magnitude of its block: a power of two, so it adds no error of its own.
// NaN and Inf have codes, and the other numbers of their block keep theirs. e4m3 has no Inf: it becomes NaN.
#pragma once

#include "core/base/round_up.h"
#include "core/quant/scales.h"
#include "core/tensor/dtype.h"

namespace mantissa {

inline constexpr int64_t kCodeBlock = block_length(Scaling::kMicro);

constexpr int64_t coded_row_bytes(int64_t n) { return n + round_up<int64_t>(divide_up(n, kCodeBlock), 64); }
// The inverse: n is a multiple of the block.
constexpr int64_t coded_row_numel(int64_t bytes) { return bytes - 64 * divide_up(bytes, 64 * (kCodeBlock + 1)); }

// Items of `dtype` in a row of n numbers, and the inverse.
constexpr int64_t row_items(DType dtype, int64_t n) { return is_coded(dtype) ? coded_row_bytes(n) : n; }
constexpr int64_t row_numel(DType dtype, int64_t items) { return is_coded(dtype) ? coded_row_numel(items) : items; }

}  // namespace mantissa
