// Blocks of attention in fp32 scratch: products, copies, the online softmax, and sums over segments. Rows are padded to
// whole vectors.
#if defined(MANTISSA_CORE_KERNELS_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_KERNELS_ATTENTION_BLOCKS_INL_H_
#undef MANTISSA_CORE_KERNELS_ATTENTION_BLOCKS_INL_H_
#else
#define MANTISSA_CORE_KERNELS_ATTENTION_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/memory.h"
#include "core/cpu/simd_math-inl.h"
#include "core/kernels/attention/segments_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- Small fp32 matrix products on scratch in the first-level cache: c = a b or c += a b.
//
// Register-blocked outer products (Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS
// 34(3), 2008, but without packing: operands are small). Each element of c is one chain of fused multiply-adds in order
// of k.

// The part of a square block on the causal diagonal that is needed. The rest is skipped, as far as register blocks
// allow.
enum class Triangle : uint8_t {
  kNone,          // all of it
  kLowerResult,   // c[r][j] for j <= r
  kLowerOperand,  // a[r][l] is 0 for l > r
  kUpperOperand,  // a[r][l] is 0 for l < r
};

// c (m, n) = a (m, k) b (k, n). a[r][l] is at a.data[r * a.row + l * a.column], so a may be a transposed view. b and c
// have contiguous rows. n is a multiple of the vector length: b and c are padded.
struct SmallGemmArgs {
  struct Rows {
    const float* data;
    int64_t row, column = 1;
  };
  struct Result {
    float* data;
    int64_t row;
  };

  int64_t m, n, k;
  Rows a, b;
  Result c;
  GradientMode mode = GradientMode::kWrite;
  Triangle triangle = Triangle::kNone;
};

// 6 rows by 4 vectors fill 24 of AVX-512's 32 registers, 6 by 2 fill 12 of the 16 of older instruction sets.
constexpr int kRegisterRows = 6;
constexpr int kRegisterVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <int kRows, int kVectors>
HWY_INLINE void small_gemm_registers(const SmallGemmArgs& args, int64_t row, int64_t column, int64_t k_begin,
                                     int64_t k_end) {
  const FloatTag df;
  const int64_t lanes = float_lanes();
  float* c = args.c.data + row * args.c.row + column;
  FloatVec sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = args.mode == GradientMode::kAccumulate ? hn::LoadU(df, c + r * args.c.row + v * lanes) : hn::Zero(df);
    }
  }
  const float* a = args.a.data + row * args.a.row + k_begin * args.a.column;
  const float* b = args.b.data + k_begin * args.b.row + column;
  for (int64_t l = k_begin; l < k_end; ++l, a += args.a.column, b += args.b.row) {
    FloatVec b_vectors[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b_vectors[v] = hn::LoadU(df, b + v * lanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto a_value = hn::Set(df, a[r * args.a.row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a_value, b_vectors[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], df, c + r * args.c.row + v * lanes);
  }
}

template <int kRows>
HWY_INLINE void small_gemm_rows(const SmallGemmArgs& args, int64_t row) {
  const int64_t lanes = float_lanes();
  const int64_t last_row = row + kRows;  // exclusive
  int64_t n = args.n, k_begin = 0, k_end = args.k;
  if (args.triangle == Triangle::kLowerResult) n = std::min(n, (last_row + lanes - 1) / lanes * lanes);
  if (args.triangle == Triangle::kLowerOperand) k_end = std::min(k_end, last_row);
  if (args.triangle == Triangle::kUpperOperand) k_begin = std::min(row, k_end);
  int64_t column = 0;
  for (; column + kRegisterVectors * lanes <= n; column += kRegisterVectors * lanes) {
    small_gemm_registers<kRows, kRegisterVectors>(args, row, column, k_begin, k_end);
  }
  for (; column + 2 * lanes <= n; column += 2 * lanes)
    small_gemm_registers<kRows, 2>(args, row, column, k_begin, k_end);
  for (; column < n; column += lanes) small_gemm_registers<kRows, 1>(args, row, column, k_begin, k_end);
}

inline HWY_NOINLINE void small_gemm(const SmallGemmArgs& args) {
  int64_t row = 0;
  for (; row + kRegisterRows <= args.m; row += kRegisterRows) small_gemm_rows<kRegisterRows>(args, row);
  for (; row + 2 <= args.m; row += 2) small_gemm_rows<2>(args, row);
  for (; row < args.m; ++row) small_gemm_rows<1>(args, row);
}

// dst (columns, rows) = transpose of src (rows, columns); both extents multiples of 4 (padded).
HWY_INLINE void transpose_padded(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst,
                                 int64_t dst_row) {
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const float* s = src + r * src_row + c;
      const auto row0 = hn::LoadU(d4, s), row1 = hn::LoadU(d4, s + src_row);
      const auto row2 = hn::LoadU(d4, s + 2 * src_row), row3 = hn::LoadU(d4, s + 3 * src_row);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, row0, row1));   // 00 10 01 11
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, row2, row3));   // 20 30 21 31
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, row0, row1));  // 02 12 03 13
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, row2, row3));
      float* t = dst + c * dst_row + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, t);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, t + dst_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, t + 2 * dst_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, t + 3 * dst_row);
    }
  }
}

// ---- Blocks in scratch

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

// ---- The online softmax of a block of queries, independent of how its products are computed:
//   m' = max(m, rowmax(s)), p = exp(s - m'), l = exp(m - m') l + rowsum(p), o = exp(m - m') o + p v;  out = o / l.
// A NaN score makes p, l and out NaN even if the maximum misses it.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018.

// Multiplies row[begin, end) by `scale` and returns the maximum. Elements before `begin` become -Inf. May write whole
// vectors: rows are padded.
HWY_INLINE float scaled_row_max(float* row, int64_t begin, int64_t end, float scale) {
  const FloatTag df;
  const auto factor = hn::Set(df, scale);
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  auto largest = lowest;
  for_each_vector(end, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    const auto mask = hn::FirstN(df, static_cast<size_t>(lanes));
    auto scaled = hn::Mul(load(row + i), factor);
    if (i < begin) scaled = hn::IfThenElse(hn::FirstN(df, static_cast<size_t>(begin - i)), lowest, scaled);
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
HWY_INLINE void softmax_block(const RunningSoftmax& s, int64_t rows, const BlockView& view, float scale,
                              int64_t padded) {
  const FloatTag df;
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (int64_t r = 0; r < rows; ++r) {
    s.references[r] = scaled_row_max(s.scores + r * kAttentionBlock, view.begin(r), view.end(r), scale);
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
    s.totals[r] += exponentiate_row(s.scores + r * kAttentionBlock, view.end(r), s.references[r]);
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

// ---- The backward pass by segments

inline KeySums take_sums(ScratchLayout& layout, int64_t keys, int64_t columns) {
  float* const d_keys = layout.take<float>(keys * columns);
  return {d_keys, layout.take<float>(keys * columns)};
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
  const int64_t segments_end = std::min(run.end, shape.segments_end(key_block));
  const int64_t query_blocks_end = shape.query_blocks_end(key_block);
  for (int64_t segment = std::max(first, run.begin); segment < segments_end; ++segment) {
    const int64_t begin = std::max(shape.segment_begin(segment), shape.query_blocks_begin(key_block));
    const bool is_first = segment == first && run.head % shape.group() == 0;  // the total is still 0
    const bool apart = run.part.d_keys != nullptr && !is_first;
    const KeySums& sums = apart ? run.part : total;
    if (is_first || shape.segments_of_group() > 1) clear(sums, floats);
    body(begin, std::min(shape.segment_end(segment), query_blocks_end), sums);
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
  const int64_t first = shape.first_segment(key_block), end = shape.segments_end(key_block);
  const int64_t rows = shape.block_rows(key_block);
  const auto sums = [&](int64_t g, int64_t segment) {
    return shape.sums(of_head, g, segment, columns).from(key_block * kAttentionBlock * columns);
  };
  const KeySums total = sums(0, first);
  for (int64_t g = 0; g < shape.group(); ++g) {
    for (int64_t segment = g == 0 ? first + 1 : first; segment < end; ++segment) {
      add(sums(g, segment), rows * columns, total);
    }
  }
  write_keys<T>(args, shape, b, kv_head, key_block * kAttentionBlock, rows, total, columns, key_scale);
}

// The kernels of a backward pass from Way, which has
//   T                                     dtype of the operands
//   columns(head_dim)                     per row of partial sums
//   key_scale(shape)                      factor of d_k
//   scratch(shape, begin, end, keys)      for segments [begin, end) of a query head; sums for `keys` keys
//   run(args, shape, scratch, run)        adds the run to its sums and writes its d_q
template <typename Way>
struct BackwardKernels {
  using Args = AttentionBackwardArgs;
  using Shape = AttentionSegments;

  static void head(const Args& args, const Shape& shape, int64_t b, int64_t kv_head) {
    const auto s = Way::scratch(shape, 0, shape.segments(), shape.sequence_length);
    for (int64_t g = 0; g < shape.group(); ++g) {
      Way::run(args, shape, s, shape.whole_head(b, kv_head * shape.group() + g, s.total, s.part));
    }
    write_keys<typename Way::T>(args, shape, b, kv_head, 0, shape.sequence_length, s.total,
                                Way::columns(shape.head_dim), Way::key_scale(shape));
  }

  static void segment(const Args& args, const Shape& shape, int64_t b, int64_t head, int64_t segment, float* of_head) {
    const KeySums sums = shape.sums(of_head, head % shape.group(), segment, Way::columns(shape.head_dim));
    Way::run(args, shape, Way::scratch(shape, segment, segment + 1, 0),
             {.b = b, .head = head, .begin = segment, .end = segment + 1, .total = sums});
  }

  static void finish(const Args& args, const Shape& shape, int64_t b, int64_t kv_head, int64_t key_block,
                     float* of_head) {
    finish_key_block<typename Way::T>(args, shape, b, kv_head, key_block, of_head, Way::columns(shape.head_dim),
                                      Way::key_scale(shape));
  }

  static AttentionBackwardKernels all(int64_t head_dim) { return {head, segment, finish, Way::columns(head_dim)}; }
};

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
