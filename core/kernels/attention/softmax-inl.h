// The online softmax of a block of queries, independent of how its products are computed:
//   m' = max(m, rowmax(s)), p = exp(s - m'), l = exp(m - m') l + rowsum(p), o = exp(m - m') o + p v;  out = o / l.
// A NaN score makes p, l and out NaN even if the maximum misses it.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018.
#if defined(MANTISSA_CORE_CPU_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_ATTENTION_SOFTMAX_INL_H_
#undef MANTISSA_CORE_CPU_ATTENTION_SOFTMAX_INL_H_
#else
#define MANTISSA_CORE_CPU_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cmath>
#include <limits>

#include "core/cpu/memory.h"
#include "core/cpu/simd_math-inl.h"
#include "core/kernels/attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Multiplies row[0, count) by `scale` and returns the maximum. May write whole vectors: rows are padded.
HWY_INLINE float scaled_row_max(float* row, int64_t count, float scale) {
  const FloatTag df;
  const auto factor = hn::Set(df, scale);
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  auto largest = lowest;
  for_each_vector(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    const auto mask = hn::FirstN(df, static_cast<size_t>(lanes));
    const auto scaled = hn::Mul(load(row + i), factor);
    store(scaled, row + i);
    largest = hn::Max(largest, hn::IfThenElse(mask, scaled, lowest));
  });
  return hn::GetLane(hn::MaxOfLanes(df, largest));
}

// row[j] = exp(row[j] - maximum) for j < count, and 0 from there up to kAttentionBlock. Returns the sum.
HWY_INLINE float exponentiate_row(float* row, int64_t count, float maximum) {
  const FloatTag df;
  const auto offset = hn::Set(df, maximum);
  auto sum = hn::Zero(df);
  int64_t end = 0;
  for_each_vector(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    const auto p = zero_beyond(exp(hn::Sub(load(row + i), offset)), lanes);
    store(p, row + i);
    sum = hn::Add(sum, p);
    end = i + float_lanes();
  });
  for (; end < kAttentionBlock; end += float_lanes()) store(hn::Zero(df), row + end);
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

HWY_INLINE void scale_row(float* row, int64_t padded, float factor) {
  const auto v = hn::Set(FloatTag(), factor);
  for (int64_t i = 0; i < padded; i += float_lanes()) store(hn::Mul(load(row + i), v), row + i);
}

// State of a block of queries while it iterates over the key blocks.
struct RunningSoftmax {
  float* scores;                    // (64, 64) of one key block, then probabilities
  float* sums;                      // (64, padded): of probabilities times values
  float *maxima, *totals;           // (64), running
  float *references, *corrections;  // (64), of one key block

  RunningSoftmax(ScratchLayout& layout, int64_t padded)
      : scores(layout.take<float>(kAttentionBlock * kAttentionBlock)),
        sums(layout.take<float>(kAttentionBlock * padded)),
        maxima(layout.take<float>(kAttentionBlock)),
        totals(layout.take<float>(kAttentionBlock)),
        references(layout.take<float>(kAttentionBlock)),
        corrections(layout.take<float>(kAttentionBlock)) {}

  void begin(int64_t rows, int64_t padded) const {
    std::fill(sums, sums + rows * padded, 0.0f);
    std::fill(maxima, maxima + kAttentionBlock, -std::numeric_limits<float>::infinity());
    std::fill(totals, totals + kAttentionBlock, 0.0f);
  }
};

// Turns the scores of one block, times `scale`, into probabilities relative to the new running maximum. Rescales
// earlier sums to it.
HWY_INLINE void softmax_block(const RunningSoftmax& s, int64_t rows, int64_t keys, bool diagonal, float scale,
                              int64_t padded) {
  const FloatTag df;
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  const auto visible = [&](int64_t r) { return diagonal ? std::min(keys, r + 1) : keys; };
  for (int64_t r = 0; r < rows; ++r) {
    s.references[r] = scaled_row_max(s.scores + r * kAttentionBlock, visible(r), scale);
  }
  for (int64_t r = 0; r < rows; r += float_lanes()) {  // all arrays are padded to whole vectors
    const auto before = load(s.maxima + r), block = load(s.references + r);
    const auto maximum = hn::IfThenElse(hn::Gt(before, block), before, block);
    // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
    const auto reference = hn::IfThenElse(hn::Eq(maximum, lowest), hn::Zero(df), maximum);
    const auto correction = exp(hn::Sub(before, reference));
    store(maximum, s.maxima + r);
    store(reference, s.references + r);
    store(correction, s.corrections + r);
    store(hn::Mul(load(s.totals + r), correction), s.totals + r);
  }
  for (int64_t r = 0; r < rows; ++r) {
    s.totals[r] += exponentiate_row(s.scores + r * kAttentionBlock, visible(r), s.references[r]);
    if (s.corrections[r] != 1.0f) scale_row(s.sums + r * padded, padded, s.corrections[r]);
  }
}

// Writes the block's out and lse.
template <typename T>
HWY_INLINE void finish_queries(const AttentionForwardArgs& args, const AttentionBlocks& shape, const RunningSoftmax& s,
                               int64_t b, int64_t head, int64_t query_block, int64_t padded) {
  const int64_t rows = shape.block_rows(query_block), first = query_block * kAttentionBlock;
  float* lse = args.lse.data<float>() + shape.lse_offset(b, head, first);
  for (int64_t r = 0; r < rows; ++r) {
    scale_row(s.sums + r * padded, padded, 1.0f / s.totals[r]);
    lse[r] = s.maxima[r] + std::log(s.totals[r]);
  }
  write_block(s.sums, padded, rows, shape.head_dim, 1.0f, args.out.data<T>() + shape.out_offset(b, head, first),
              shape.out_row());
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
