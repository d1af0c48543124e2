// Copies blocks of attention's operands between tensors and fp32 scratch, whose rows are padded to whole vectors.
#if defined(MANTISSA_CORE_CPU_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_ATTENTION_BLOCK_INL_H_
#undef MANTISSA_CORE_CPU_ATTENTION_BLOCK_INL_H_
#else
#define MANTISSA_CORE_CPU_ATTENTION_BLOCK_INL_H_
#endif

#include <algorithm>

#include "core/kernels/attention/blocks_cpu.h"
#include "core/kernels/gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// head_dim rounded up to whole vectors (and so to a multiple of 4).
HWY_INLINE int64_t padded_dim(int64_t head_dim) {
  return (head_dim + float_lanes() - 1) / float_lanes() * float_lanes();
}

// dst (rows, padded) = scale * src (rows, dim); the padding is 0.
template <typename T>
HWY_INLINE void read_block(const T* src, int64_t src_row, int64_t rows, int64_t dim, float scale, float* dst,
                           int64_t padded) {
  const auto factor = hn::Set(FloatTag(), scale);
  for (int64_t r = 0; r < rows; ++r, src += src_row, dst += padded) {
    for_each_vector(dim, [&](int64_t i, int64_t count)
                             MANTISSA_VECTOR_LAMBDA { store(hn::Mul(load(src + i, count), factor), dst + i); });
  }
}

// dst (rows, dim) = scale * src (rows, padded).
template <typename T>
HWY_INLINE void write_block(const float* src, int64_t padded, int64_t rows, int64_t dim, float scale, T* dst,
                            int64_t dst_row) {
  const auto factor = hn::Set(FloatTag(), scale);
  for (int64_t r = 0; r < rows; ++r, src += padded, dst += dst_row) {
    for_each_vector(dim, [&](int64_t i, int64_t count)
                             MANTISSA_VECTOR_LAMBDA { store(hn::Mul(load(src + i), factor), dst + i, count); });
  }
}

// dst (padded, kAttentionBlock) = transpose of src (rows, padded). Clears the rows of src up to the next multiple of 4,
// and the columns of dst beyond those.
HWY_INLINE void transpose_block(float* src, int64_t rows, int64_t padded, float* dst) {
  const int64_t rows4 = (rows + 3) / 4 * 4;
  std::fill(src + rows * padded, src + rows4 * padded, 0.0f);
  transpose_padded(src, padded, rows4, padded, dst, kAttentionBlock);
  if (rows4 == kAttentionBlock) return;
  for (int64_t r = 0; r < padded; ++r)
    std::fill(dst + r * kAttentionBlock + rows4, dst + (r + 1) * kAttentionBlock, 0.0f);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
