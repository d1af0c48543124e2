// Adds up the partial sums of AttentionSegments.
#if defined(MANTISSA_CORE_CPU_ATTENTION_SEGMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_ATTENTION_SEGMENTS_INL_H_
#undef MANTISSA_CORE_CPU_ATTENTION_SEGMENTS_INL_H_
#else
#define MANTISSA_CORE_CPU_ATTENTION_SEGMENTS_INL_H_
#endif

#include "core/cpu/memory.h"
#include "core/kernels/attention/block-inl.h"
#include "core/kernels/attention/segments_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

inline KeySums take_sums(ScratchLayout& layout, int64_t floats) {
  float* const d_keys = layout.take<float>(floats);
  return {d_keys, layout.take<float>(floats)};
}

HWY_INLINE void clear(const KeySums& sums, int64_t floats) {
  std::fill_n(sums.d_keys, floats, 0.0f);
  std::fill_n(sums.d_values, floats, 0.0f);
}

// total += part; `floats` is a multiple of the vector length.
HWY_INLINE void add(const KeySums& part, int64_t floats, const KeySums& total) {
  for (int64_t i = 0; i < floats; i += float_lanes()) {
    store(hn::Add(load(total.d_keys + i), load(part.d_keys + i)), total.d_keys + i);
    store(hn::Add(load(total.d_values + i), load(part.d_values + i)), total.d_values + i);
  }
}

// Adds the run's queries that see key_block to the run's sums. body(begin, end, sums) adds query blocks [begin, end).
template <typename Body>
HWY_INLINE void add_segments(const AttentionSegments& shape, const SegmentRun& run, int64_t key_block, int64_t columns,
                             const Body& body) {
  const KeySums total = run.total.from(key_block * kAttentionBlock * columns);
  const int64_t first = shape.first_segment(key_block), floats = shape.block_rows(key_block) * columns;
  for (int64_t segment = std::max(first, run.begin); segment < run.end; ++segment) {
    const int64_t begin = std::max(shape.segment_begin(segment), shape.query_blocks_begin(key_block));
    const bool is_first = segment == first && run.head % shape.group() == 0;  // the total is still 0
    const bool apart = run.part.d_keys != nullptr && !is_first;
    const KeySums& sums = apart ? run.part : total;
    if (is_first || shape.segments_of_group() > 1) clear(sums, floats);
    body(begin, shape.segment_end(segment), sums);
    if (apart) add(run.part, floats, total);
  }
}

// Writes d_k = key_scale * sums.d_keys and d_v = sums.d_values of `rows` keys from `first` on.
template <typename T>
void write_keys(const AttentionBackwardArgs& args, const AttentionSegments& shape, int64_t b, int64_t kv_head,
                int64_t first, int64_t rows, const KeySums& sums, int64_t columns, float key_scale) {
  T* d_qkv = args.d_qkv.data<T>();
  write_block(sums.d_keys, columns, rows, shape.head_dim, key_scale, d_qkv + shape.key_offset(b, kv_head, first),
              shape.qkv_row());
  write_block(sums.d_values, columns, rows, shape.head_dim, 1.0f, d_qkv + shape.value_offset(b, kv_head, first),
              shape.qkv_row());
}

// Adds the partial sums of one key block, in the order of add_segments(), into the first of them. Writes d_k and d_v.
template <typename T>
void finish_key_block(const AttentionBackwardArgs& args, const AttentionSegments& shape, int64_t b, int64_t kv_head,
                      int64_t key_block, float* of_head, int64_t columns, float key_scale) {
  const int64_t first = shape.first_segment(key_block), rows = shape.block_rows(key_block);
  const auto sums = [&](int64_t g, int64_t segment) {
    return shape.sums(of_head, g, segment, columns).from(key_block * kAttentionBlock * columns);
  };
  const KeySums total = sums(0, first);
  for (int64_t g = 0; g < shape.group(); ++g) {
    for (int64_t segment = g == 0 ? first + 1 : first; segment < shape.segments(); ++segment) {
      add(sums(g, segment), rows * columns, total);
    }
  }
  write_keys<T>(args, shape, b, kv_head, key_block * kAttentionBlock, rows, total, columns, key_scale);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
