// out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)), on tensor cores.
//
// A block has 128 queries of a head, 32 a warp (half of that for Reach::kLimited), and goes over the keys 64 at a time
// with a running maximum m and sum l per query: m' = max(m, rowmax(s)), p = exp(s - m'), l = exp(m - m') l + rowsum(p),
// o = exp(m - m') o + p v; at the end out = o / l. Scores, p, l and o are fp32 in registers; p is rounded to the
// operands' dtype for the second product only. Keys come in order, so every run gives the same bits. A NaN score makes
// p, l and out NaN even if the maximum misses it. Masked probabilities are 0: within 128 positions 0 * NaN may spread
// to earlier queries; whole masked blocks are skipped.
//
// Keys and values have a tile each and take turns: one is copied in while the other is multiplied. Both products read
// 16 bytes of shared memory for four instructions. Bound by tensor cores: 4 T^2 D operations per head (half of them
// when causal) for 4 T D elements of memory traffic.
//
// Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023; Milakov &
// Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "core/kernels/attention/mma_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kKeys = 64;

template <typename T>
struct ForwardOperands {
  const T* qkv;
  const int32_t* starts;  // (B, T), null for none
  T* out;
  float* lse;
  float log2_scale;  // scale / log(2): here it takes no register
};

// Values of the queries whose scores a lane holds: two in each row tile.
template <int kRowTiles>
using PerQuery = float[kRowTiles][2];

// Over the four lanes that share a query.
template <typename Op>
__device__ __forceinline__ float reduce_query(float value, Op op) {
  value = op(value, __shfl_xor_sync(kAllLanes, value, 1));
  return op(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// Scores become probabilities against the new running maximum; earlier sums are rescaled to it. Maxima are of scores
// before they are multiplied by `log2_scale`, which is positive.
template <int kRowTiles, int kDimTiles>
__device__ __forceinline__ void softmax_block(Sums<kRowTiles, kKeys / 8>& scores, PerQuery<kRowTiles>& maxima,
                                              PerQuery<kRowTiles>& totals, Sums<kRowTiles, kDimTiles>& sums,
                                              float log2_scale) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maxima[m][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
      }
      largest = reduce_query(largest, NumberMax());
      // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
      const float reference = largest == kMaskedScore ? 0.0f : largest * log2_scale;
      const float correction = exp2_flushed(fmaf(maxima[m][half], log2_scale, -reference));
      float total = totals[m][half] * correction;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          scores[m][n][i] = exp2_flushed(fmaf(scores[m][n][i], log2_scale, -reference));
          total += scores[m][n][i];
        }
      }
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        sums[m][n][half * 2] *= correction;
        sums[m][n][half * 2 + 1] *= correction;
      }
      maxima[m][half] = largest;
      totals[m][half] = total;
    }
    // Otherwise the compiler keeps the exponents of both row tiles and spills sums: for heads of 128 on sm_80, and of
    // 96 on sm_89.
    if constexpr (kDimTiles * 8 >= 96) order_here();
  }
}

// Divides the sums of a warp's queries by their totals, and writes the logarithms of the totals to `lse` of the head.
template <int kRowTiles, int kDimTiles>
__device__ __forceinline__ void divide_by_totals(Sums<kRowTiles, kDimTiles>& sums, const PerQuery<kRowTiles>& totals,
                                                 const PerQuery<kRowTiles>& maxima, float scale, float* lse,
                                                 int first_query, int end) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = reduce_query(totals[m][half], Sum()), factor = 1.0f / total;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        sums[m][n][half * 2] *= factor;
        sums[m][n][half * 2 + 1] *= factor;
      }
      const int query = first_query + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < end) lse[query] = fmaf(maxima[m][half], scale, logf(total));
    }
  }
}

// Queries from `first_query` on of one head, at most a block, and keys from `keys_begin` on. Both end at `end`.
template <typename T, int kDim, Reach kReach>
__device__ __forceinline__ void attend(const ForwardOperands<T>& operands, const AttentionShape& shape,
                                       const HeadPiece& at, int first_query, int keys_begin, int end) {
  using Tile = SharedTile<T, kDim>;
  constexpr int kRowTiles = QueryRows<kReach>::kTiles, kWarpQueries = QueryRows<kReach>::kOfWarp;
  constexpr int kQueries = QueryRows<kReach>::kOfBlock;
  T* shared = shared_memory<T>();
  const Tile queries{shared}, keys{shared + Tile::elements(kQueries)},
      values{shared + Tile::elements(kQueries + kKeys)};
  const bool causal = shape.mask == Mask::kCausal;
  const int warp_row = static_cast<int>(threadIdx.x) / kLanes * kWarpQueries, window = static_cast<int>(shape.window);
  const int keys_end = causal ? std::min(end, first_query + kQueries) : end;
  const T* head_keys = operands.qkv + shape.key_offset(at.b, at.head / shape.group(), 0);
  const auto copy_step = [&](const Tile& to, const T* of_head, int first) {
    const T* from = of_head + first * shape.qkv_row();
    copy_tile<kKeys, kAttentionThreads>(to, head_rows(from, shape.qkv_row(), shape, end - first));
  };

  const T* query_rows = operands.qkv + shape.query_offset(at.b, at.head, first_query);
  copy_tile<kQueries, kAttentionThreads>(queries, head_rows(query_rows, shape.qkv_row(), shape, end - first_query));
  copy_step(keys, head_keys, keys_begin);
  commit_copies();

  Sums<kRowTiles, kDim / 8> sums = {};
  PerQuery<kRowTiles> maxima, totals = {};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) maxima[m][0] = maxima[m][1] = kMaskedScore;
  for (int first_key = keys_begin; first_key < keys_end; first_key += kKeys) {
    const int first_warp_query = first_query + warp_row;
    const bool sees_keys = (!causal || first_key < first_warp_query + kWarpQueries) &&
                           !is_before_window<kReach>(first_warp_query, first_key, kKeys, window);
    wait_for_copies<0>();
    __syncthreads();  // the keys are there; nobody needs the values before them any more
    copy_step(values, head_keys + shape.num_kv_heads * shape.head_dim, first_key);
    commit_copies();
    Sums<kRowTiles, kKeys / 8> scores = {};
    if (sees_keys) multiply_transposed(scores, queries, warp_row, keys);
    wait_for_copies<0>();
    __syncthreads();  // the values are there; nobody needs these keys any more
    if (first_key + kKeys < keys_end) copy_step(keys, head_keys, first_key + kKeys);
    commit_copies();
    if (!sees_keys) continue;
    mask_scores<kReach>(scores, first_warp_query, first_key, end, shape);
    softmax_block(scores, maxima, totals, sums, operands.log2_scale);
    LeftOperand<kRowTiles> probabilities[kKeys / 16];
    round_to_left<T>(probabilities, scores);
    multiply(sums, probabilities, values);
  }

  float* lse = operands.lse + shape.lse_offset(at.b, at.head, 0);
  divide_by_totals(sums, totals, maxima, shape.scale, lse, first_query + warp_row, end);
  T* out = operands.out + shape.out_offset(at.b, at.head, first_query);
  write_sums(head_rows(out, shape.out_row(), shape, end - first_query), queries, warp_row, sums);
}

template <typename T, int kDim, Reach kReach>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    forward_kernel(ForwardOperands<T> operands, AttentionShape shape) {
  for_each_query_block<kReach>(operands.starts, shape, [&](const HeadPiece& at, int first, int keys_begin, int end) {
    attend<T, kDim, kReach>(operands, shape, at, first, keys_begin, end);
  });
}

}  // namespace

void attention_forward_mma(const AttentionForwardArgs& args, CudaStream& stream) {
  const AttentionShape& shape = args.shape;
  dispatch_mma(args, [&]<typename T, int kDim, Reach kReach>() {
    constexpr int kQueries = QueryRows<kReach>::kOfBlock;
    const ForwardOperands<T> operands{args.qkv.data<T>(), data_or_null<int32_t>(args.starts), args.out.data<T>(),
                                      args.lse.data<float>(), shape.scale * kLog2E};
    launch(forward_kernel<T, kDim, kReach>,
           {.grid = head_pieces_grid("attention_forward", shape, shape.num_heads, kQueries),
            .block = kAttentionThreads,
            .shared_bytes = SharedTile<T, kDim>::elements(kQueries + 2 * kKeys) * sizeof(T)},
           stream.handle(), operands, shape);
  });
}

}  // namespace mantissa::cuda
