// Gradients of attention in fp32 without tensor cores, p = exp(scale * q k^T - lse):
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k,
//   with d_s = p * (d_p - delta), d_p = d_out v^T, delta = rowsum(out * d_out).
// For fp32 operands, and for what the kernels on tensor cores do not take.
//
// One kernel over blocks of 64 keys, which goes over all query heads of the group and their queries; one over blocks of
// 64 queries, which goes over the keys. A block computes 64 columns of its gradients; wider heads have several, each of
// which computes p and d_s. Positions and heads come in order and nothing is added across blocks: the same bits in
// every run. Bound by fp32 arithmetic and reads of shared memory.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, appendix B.
#include "core/kernels/attention/log2_cuda.h"
#include "core/kernels/attention/paths_cuda.h"
#include "core/kernels/attention/simt_cuda.h"

namespace mantissa::cuda {
namespace {

template <typename T>
struct BackwardOperands {
  const T* qkv;
  const T* d_out;
  T* d_qkv;
  AttentionRowTerms terms;
};

// A block of queries of one head against a block of keys.
struct BlockPair {
  int b, head, first_query, first_key;
};

// The block's shared memory.
struct BackwardTiles {
  static constexpr int kCount = 4;
  SimtTile a, b, probabilities, d_scores;

  __device__ __forceinline__ explicit BackwardTiles(float* shared)
      : a{shared},
        b{shared + SimtTile::kElements},
        probabilities{shared + 2 * SimtTile::kElements},
        d_scores{shared + 3 * SimtTile::kElements} {}
};

template <typename T>
struct Backward {
  const BackwardOperands<T>& operands;
  const AttentionShape& extents;

  __device__ __forceinline__ SimtRows<const T> qkv_rows(int64_t offset, int first) const {
    return simt_rows<const T>(operands.qkv + offset, extents.qkv_row(), extents, first);
  }
  __device__ __forceinline__ SimtRows<const T> queries(const BlockPair& at) const {
    return qkv_rows(extents.query_offset(at.b, at.head, at.first_query), at.first_query);
  }
  __device__ __forceinline__ SimtRows<const T> keys(const BlockPair& at) const {
    return qkv_rows(extents.key_offset(at.b, at.head / extents.group(), at.first_key), at.first_key);
  }
  __device__ __forceinline__ SimtRows<const T> values(const BlockPair& at) const {
    return qkv_rows(extents.value_offset(at.b, at.head / extents.group(), at.first_key), at.first_key);
  }
  __device__ __forceinline__ SimtRows<const T> d_out(const BlockPair& at) const {
    return simt_rows<const T>(operands.d_out + extents.out_offset(at.b, at.head, at.first_query), extents.out_row(),
                              extents, at.first_query);
  }
  __device__ __forceinline__ SimtRows<T> gradient(int64_t offset, int first) const {
    return simt_rows<T>(operands.d_qkv + offset, extents.qkv_row(), extents, first);
  }

  // p and d_s of the pair, queries by keys; 0 where a query does not see a key. Begins with a barrier; afterwards
  // tiles.a and tiles.b can be written to, and p and d_s be read after one more barrier.
  __device__ __forceinline__ void softmax_gradient(const BlockPair& at, const BackwardTiles& tiles) const {
    SimtSums probabilities = {}, d_scores = {};
    add_dot_products(probabilities, queries(at), keys(at), tiles.a, tiles.b);
    add_dot_products(d_scores, d_out(at), values(at), tiles.a, tiles.b);
    const int length = static_cast<int>(extents.sequence_length);
    for (int i = 0; i < kSimtPerThread; ++i) {
      const int query = at.first_query + simt_first_row() + i;
      const int64_t term = operands.terms.offset(extents, at.b, at.head, query);
      const float log2_sum = operands.terms.log2_sums[term], delta = operands.terms.deltas[term];
      for (int j = 0; j < kSimtPerThread; ++j) {
        const int key = at.first_key + simt_column(j);
        const bool sees = key < length && !(extents.mask == Mask::kCausal && key > query);
        const float p = exp2f(fmaf(probabilities[i][j], extents.scale * kLog2E, -log2_sum));
        probabilities[i][j] = sees ? p : 0.0f;
        d_scores[i][j] = sees ? p * (d_scores[i][j] - delta) : 0.0f;
      }
    }
    store_tile(tiles.probabilities, probabilities);
    store_tile(tiles.d_scores, d_scores);
  }
};

__device__ __forceinline__ void scale_sums(SimtSums& sums, float factor) {
  for (auto& row : sums) {
    for (float& sum : row) sum *= factor;
  }
}

template <typename T>
__global__ void __launch_bounds__(kSimtThreads)
    keys_backward_simt_kernel(BackwardOperands<T> operands, AttentionShape extents) {
  const Backward<T> backward{operands, extents};
  const BackwardTiles tiles(shared_memory<float>());
  const int length = static_cast<int>(extents.sequence_length), first_column = static_cast<int>(blockIdx.y) * kSimtTile;
  const HeadPiece at = head_piece(pieces_of(length, kSimtTile), extents.num_kv_heads);
  const int group = static_cast<int>(extents.group()), first_key = at.piece * kSimtTile;
  SimtSums d_keys = {}, d_values = {};
  for (int head = at.head * group; head < (at.head + 1) * group; ++head) {
    for (int query = extents.mask == Mask::kCausal ? first_key : 0; query < length; query += kSimtTile) {
      const BlockPair pair{at.b, head, query, first_key};
      backward.softmax_gradient(pair, tiles);
      load_tile(tiles.a, backward.d_out(pair), first_column);
      load_tile(tiles.b, backward.queries(pair), first_column);
      __syncthreads();
      add_product(
          d_values, [&](int key, int k) { return tiles.probabilities.at(k, key); },
          [&](int k, int column) { return tiles.a.at(k, column); });
      add_product(
          d_keys, [&](int key, int k) { return tiles.d_scores.at(k, key); },
          [&](int k, int column) { return tiles.b.at(k, column); });
    }
  }
  scale_sums(d_keys, extents.scale);
  write_sums(backward.gradient(extents.key_offset(at.b, at.head, first_key), first_key), first_column, d_keys);
  write_sums(backward.gradient(extents.value_offset(at.b, at.head, first_key), first_key), first_column, d_values);
}

template <typename T>
__global__ void __launch_bounds__(kSimtThreads)
    queries_backward_simt_kernel(BackwardOperands<T> operands, AttentionShape extents) {
  const Backward<T> backward{operands, extents};
  const BackwardTiles tiles(shared_memory<float>());
  const int length = static_cast<int>(extents.sequence_length), first_column = static_cast<int>(blockIdx.y) * kSimtTile;
  const HeadPiece at = head_piece(pieces_of(length, kSimtTile), extents.num_heads);
  const int first_query = at.piece * kSimtTile;
  const int keys_end = extents.mask == Mask::kCausal ? std::min(length, first_query + kSimtTile) : length;
  SimtSums d_queries = {};
  for (int first_key = 0; first_key < keys_end; first_key += kSimtTile) {
    const BlockPair pair{at.b, at.head, first_query, first_key};
    backward.softmax_gradient(pair, tiles);
    load_tile(tiles.b, backward.keys(pair), first_column);
    __syncthreads();
    add_product(
        d_queries, [&](int row, int k) { return tiles.d_scores.at(row, k); },
        [&](int k, int column) { return tiles.b.at(k, column); });
  }
  scale_sums(d_queries, extents.scale);
  write_sums(backward.gradient(extents.query_offset(at.b, at.head, first_query), first_query), first_column, d_queries);
}

template <typename T>
BackwardOperands<T> operands_of(const AttentionBackwardArgs& args, const AttentionRowTerms& terms) {
  return {args.qkv.data<T>(), args.d_out.data<T>(), args.d_qkv.data<T>(), terms};
}

LaunchShape shape_for(const AttentionShape& extents, int64_t heads) {
  const unsigned blocks =
      head_pieces_grid("attention_backward", pieces_of(extents.sequence_length, kSimtTile), heads, extents.batch);
  return {.grid = dim3(blocks, simt_column_blocks(extents)),
          .block = kSimtThreads,
          .shared_bytes = BackwardTiles::kCount * SimtTile::kElements * sizeof(float)};
}

}  // namespace

void attention_keys_backward_simt(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                  const AttentionRowTerms& terms, CudaStream& stream) {
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    launch(keys_backward_simt_kernel<T>, shape_for(extents, extents.num_kv_heads), stream.handle(),
           operands_of<T>(args, terms), extents);
  });
}

void attention_queries_backward_simt(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                     const AttentionRowTerms& terms, CudaStream& stream) {
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    launch(queries_backward_simt_kernel<T>, shape_for(extents, extents.num_heads), stream.handle(),
           operands_of<T>(args, terms), extents);
  });
}

}  // namespace mantissa::cuda
