// Attention in fp32 without tensor cores: for fp32 operands, and where fits_tensor_cores() is false.
//
// Blocks of 256 threads multiply 64 x 64 fp32 tiles in shared memory, each thread with 4 x 4 results, in fp32 and in
// ascending order. A block computes 64 columns of its results. Wider heads have several blocks, and each computes the
// scores: so any head dimension fits into the same registers and shared memory. Positions and heads come in order and
// nothing is added across blocks: every run gives the same bits. Bound by fp32 arithmetic and reads of shared memory.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, with appendix B; Milakov & Gimelshein, 2018.
#include <limits>

#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kSimtTile = 64, kSimtSide = 16, kSimtThreads = kSimtSide * kSimtSide;
constexpr int kSimtPerThread = kSimtTile / kSimtSide;  // rows, and columns

// A thread's results: rows first_row() + i, columns column(j).
using SimtSums = float[kSimtPerThread][kSimtPerThread];

__device__ __forceinline__ int simt_first_row() { return static_cast<int>(threadIdx.x) / kSimtSide * kSimtPerThread; }
// Neighbouring lanes have neighbouring columns: no bank conflicts, whole lines of memory.
__device__ __forceinline__ int simt_column(int j) { return static_cast<int>(threadIdx.x) % kSimtSide + j * kSimtSide; }

struct SimtTile {
  static constexpr int kStride = kSimtTile + 1;  // rows that neighbouring lanes read begin in different banks
  static constexpr int kElements = kSimtTile * kStride;

  __device__ __forceinline__ float& at(int row, int column) const { return data[row * kStride + column]; }

  float* data;
};

// The launch of a kernel that uses `tiles` tiles. The blocks of the grid's y axis share the columns of a head.
LaunchShape simt_launch(const char* op, const AttentionShape& shape, int64_t heads, int tiles) {
  constexpr int64_t kMaxColumnBlocks = 65535;
  const int64_t blocks = pieces_of(shape.head_dim, kSimtTile);
  MANTISSA_CHECK(blocks <= kMaxColumnBlocks, "[attention] head_dim must be at most {}, got {}",
                 kMaxColumnBlocks * kSimtTile, shape.head_dim);
  return {.grid = dim3(head_pieces_grid(op, shape, heads, kSimtTile), static_cast<unsigned>(blocks)),
          .block = kSimtThreads,
          .shared_bytes = static_cast<size_t>(tiles * SimtTile::kElements) * sizeof(float)};
}

template <typename T>
struct SimtRows {
  T* data;
  int64_t stride;
  int rows, columns;
};

template <typename T>
__device__ __forceinline__ SimtRows<T> simt_rows(T* first_row, int64_t stride, const AttentionShape& shape, int rows) {
  return {.data = first_row, .stride = stride, .rows = rows, .columns = static_cast<int>(shape.head_dim)};
}

// Columns [first_column, first_column + 64) of the first 64 rows; 0 where there are none.
template <typename T>
__device__ __forceinline__ void load_tile(const SimtTile& to, const SimtRows<const T>& from, int first_column) {
  for (int i = static_cast<int>(threadIdx.x); i < kSimtTile * kSimtTile; i += kSimtThreads) {
    const int row = i / kSimtTile, column = i % kSimtTile;
    const bool inside = row < from.rows && first_column + column < from.columns;
    to.at(row, column) = inside ? widen(from.data[row * from.stride + first_column + column]) : 0.0f;
  }
}

// Into columns [first_column, first_column + 64), rounded.
template <typename T>
__device__ __forceinline__ void write_sums(const SimtRows<T>& to, int first_column, const SimtSums& sums) {
#pragma unroll
  for (int i = 0; i < kSimtPerThread; ++i) {
    for (int j = 0; j < kSimtPerThread; ++j) {
      const int row = simt_first_row() + i, column = first_column + simt_column(j);
      if (row < to.rows && column < to.columns) to.data[row * to.stride + column] = narrow<T>(sums[i][j]);
    }
  }
}

__device__ __forceinline__ void store_tile(const SimtTile& to, const SimtSums& values) {
#pragma unroll
  for (int i = 0; i < kSimtPerThread; ++i) {
    for (int j = 0; j < kSimtPerThread; ++j) to.at(simt_first_row() + i, simt_column(j)) = values[i][j];
  }
}

// sums += over k of left(row, k) * right(k, column), as the two functions give them.
template <typename Left, typename Right>
__device__ __forceinline__ void add_product(SimtSums& sums, const Left& left, const Right& right) {
  for (int k = 0; k < kSimtTile; ++k) {
    float rows[kSimtPerThread], columns[kSimtPerThread];
#pragma unroll
    for (int i = 0; i < kSimtPerThread; ++i) {
      rows[i] = left(simt_first_row() + i, k);
      columns[i] = right(k, simt_column(i));
    }
#pragma unroll
    for (int i = 0; i < kSimtPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kSimtPerThread; ++j) sums[i][j] += rows[i] * columns[j];
    }
  }
}

// sums += left * right^T over all columns, through the tiles `a` and `b`. Begins and ends with a barrier, so that both
// can be written to before and after.
template <typename T>
__device__ __forceinline__ void add_dot_products(SimtSums& sums, const SimtRows<const T>& left,
                                                 const SimtRows<const T>& right, const SimtTile& a, const SimtTile& b) {
  for (int column = 0; column < left.columns; column += kSimtTile) {
    __syncthreads();
    load_tile(a, left, column);
    load_tile(b, right, column);
    __syncthreads();
    add_product(
        sums, [&](int row, int k) { return a.at(row, k); }, [&](int k, int other) { return b.at(other, k); });
  }
  __syncthreads();
}

// ---- Forward pass: out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)). A running
// softmax over blocks of 64 queries and 64 keys; probabilities are not rounded.

constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <typename T>
struct ForwardOperands {
  const T* qkv;
  const int32_t* starts;  // (B, T), null for none
  T* out;
  float* lse;
};

// Over the threads of a row: lanes of one warp.
template <typename Op>
__device__ __forceinline__ float reduce_row(float value, Op op) {
  for (int distance = kSimtSide / 2; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Scores become probabilities against the new running maximum, or 0 if not seen; earlier sums are rescaled to it.
template <typename Sees>
__device__ __forceinline__ void softmax_block(SimtSums& scores, float (&maxima)[kSimtPerThread],
                                              float (&totals)[kSimtPerThread], SimtSums& sums, float scale,
                                              const Sees& sees) {
#pragma unroll
  for (int i = 0; i < kSimtPerThread; ++i) {
    float largest = maxima[i];
#pragma unroll
    for (int j = 0; j < kSimtPerThread; ++j) {
      scores[i][j] *= scale;
      if (sees(i, j)) largest = fmaxf(largest, scores[i][j]);
    }
    largest = reduce_row(largest, NumberMax());
    // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
    const float reference = largest == kLowest ? 0.0f : largest;
    const float correction = expf(maxima[i] - reference);
    maxima[i] = largest;
    totals[i] *= correction;
#pragma unroll
    for (int j = 0; j < kSimtPerThread; ++j) {
      scores[i][j] = sees(i, j) ? expf(scores[i][j] - reference) : 0.0f;
      totals[i] += scores[i][j];
      sums[i][j] *= correction;
    }
  }
}

// Queries [first_query, end) of a document.
template <typename T>
__device__ __forceinline__ void attend_simt(const ForwardOperands<T>& operands, const AttentionShape& shape,
                                            const HeadPiece& at, int first_query, int end, const Document& document) {
  float* shared = shared_memory<float>();
  const SimtTile a{shared}, b{shared + SimtTile::kElements}, probabilities{shared + 2 * SimtTile::kElements};
  const int first_column = static_cast<int>(blockIdx.y) * kSimtTile,
            kv_head = at.head / static_cast<int>(shape.group());
  const int keys_end = shape.mask == Mask::kCausal ? end : document.end;
  const auto rows_at = [&](int64_t offset, int first) {
    return simt_rows<const T>(operands.qkv + offset, shape.qkv_row(), shape, document.end - first);
  };
  const SimtRows<const T> queries = rows_at(shape.query_offset(at.b, at.head, first_query), first_query);

  SimtSums sums = {};
  float maxima[kSimtPerThread], totals[kSimtPerThread] = {};
  for (float& maximum : maxima) maximum = kLowest;
  int first_key = static_cast<int>(shape.first_key(first_query, document.begin));
  for (; first_key < keys_end; first_key += kSimtTile) {
    SimtSums scores = {};
    add_dot_products(scores, queries, rows_at(shape.key_offset(at.b, kv_head, first_key), first_key), a, b);
    softmax_block(scores, maxima, totals, sums, shape.scale, [&](int i, int j) {
      const int query = first_query + simt_first_row() + i, key = first_key + simt_column(j);
      return key < document.end && shape.sees(query, key);
    });
    store_tile(probabilities, scores);
    load_tile(b, rows_at(shape.value_offset(at.b, kv_head, first_key), first_key), first_column);
    __syncthreads();
    add_product(
        sums, [&](int row, int k) { return probabilities.at(row, k); },
        [&](int k, int column) { return b.at(k, column); });
  }

#pragma unroll
  for (int i = 0; i < kSimtPerThread; ++i) {
    const float total = reduce_row(totals[i], Sum()), factor = 1.0f / total;
    for (float& sum : sums[i]) sum *= factor;
    const int query = first_query + simt_first_row() + i;
    if (query < end && first_column == 0 && simt_column(0) == 0) {
      operands.lse[shape.lse_offset(at.b, at.head, query)] = maxima[i] + logf(total);
    }
  }
  T* out = operands.out + shape.out_offset(at.b, at.head, first_query);
  write_sums(simt_rows<T>(out, shape.out_row(), shape, end - first_query), first_column, sums);
}

template <typename T>
__global__ void __launch_bounds__(kSimtThreads, 2)
    forward_simt_kernel(ForwardOperands<T> operands, AttentionShape shape) {
  const HeadPiece at = head_piece(pieces_of(shape.sequence_length, kSimtTile), shape.num_heads);
  for_each_document(operands.starts, at, kSimtTile, shape, [&](int first, int end, const Document& document) {
    attend_simt(operands, shape, at, first, end, document);
  });
}

// ---- Backward pass, p = exp(scale * q k^T - lse):
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k,
//   with d_s = p * (d_p - delta), d_p = d_out v^T, delta = rowsum(out * d_out).
// One kernel over blocks of 64 keys iterates over all query heads of the group and their queries. One over blocks of 64
// queries iterates over the keys.

// A block of a head's queries against a block of keys, both of one document.
struct BlockPair {
  int b, head, first_query, first_key, document_end;
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
  const AttentionBackwardOperands<T>& operands;
  const AttentionShape& shape;

  __device__ __forceinline__ SimtRows<const T> qkv_rows(int64_t offset, int rows) const {
    return simt_rows<const T>(operands.qkv + offset, shape.qkv_row(), shape, rows);
  }
  __device__ __forceinline__ SimtRows<const T> queries(const BlockPair& at) const {
    return qkv_rows(shape.query_offset(at.b, at.head, at.first_query), at.document_end - at.first_query);
  }
  __device__ __forceinline__ SimtRows<const T> keys(const BlockPair& at) const {
    return qkv_rows(shape.key_offset(at.b, at.head / shape.group(), at.first_key), at.document_end - at.first_key);
  }
  __device__ __forceinline__ SimtRows<const T> values(const BlockPair& at) const {
    return qkv_rows(shape.value_offset(at.b, at.head / shape.group(), at.first_key), at.document_end - at.first_key);
  }
  __device__ __forceinline__ SimtRows<const T> d_out(const BlockPair& at) const {
    return simt_rows<const T>(operands.d_out + shape.out_offset(at.b, at.head, at.first_query), shape.out_row(), shape,
                              at.document_end - at.first_query);
  }
  __device__ __forceinline__ SimtRows<T> gradient(int64_t offset, int rows) const {
    return simt_rows<T>(operands.d_qkv + offset, shape.qkv_row(), shape, rows);
  }

  // p and d_s of the pair, queries by keys; 0 where a query does not see a key. Begins with a barrier; afterwards
  // tiles.a and tiles.b can be written to, and p and d_s be read after one more barrier.
  __device__ __forceinline__ void softmax_gradient(const BlockPair& at, const BackwardTiles& tiles) const {
    SimtSums probabilities = {}, d_scores = {};
    add_dot_products(probabilities, queries(at), keys(at), tiles.a, tiles.b);
    add_dot_products(d_scores, d_out(at), values(at), tiles.a, tiles.b);
    for (int i = 0; i < kSimtPerThread; ++i) {
      const int query = at.first_query + simt_first_row() + i;
      const int64_t term = operands.terms.offset(shape, at.b, at.head, std::min(query, at.document_end - 1));
      const float log2_sum = operands.terms.log2_sums[term], delta = operands.terms.deltas[term];
      for (int j = 0; j < kSimtPerThread; ++j) {
        const int key = at.first_key + simt_column(j);
        const bool sees = query < at.document_end && key < at.document_end && shape.sees(query, key);
        const float p = exp2f(fmaf(probabilities[i][j], shape.scale * kLog2E, -log2_sum));
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

// Keys [first_key, end) of a document.
template <typename T>
__device__ __forceinline__ void keys_backward_simt(const Backward<T>& backward, const HeadPiece& at, int first_key,
                                                   int end, const Document& document) {
  const AttentionShape& shape = backward.shape;
  const BackwardTiles tiles(shared_memory<float>());
  const int first_column = static_cast<int>(blockIdx.y) * kSimtTile;
  const int group = static_cast<int>(shape.group()), window = static_cast<int>(shape.window);
  const int queries_end = window > 0 ? std::min(document.end, end - 1 + window) : document.end;
  SimtSums d_keys = {}, d_values = {};
  for (int head = at.head * group; head < (at.head + 1) * group; ++head) {
    for (int query = shape.mask == Mask::kCausal ? first_key : 0; query < queries_end; query += kSimtTile) {
      const BlockPair pair{at.b, head, query, first_key, document.end};
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
  scale_sums(d_keys, shape.scale);
  write_sums(backward.gradient(shape.key_offset(at.b, at.head, first_key), end - first_key), first_column, d_keys);
  write_sums(backward.gradient(shape.value_offset(at.b, at.head, first_key), end - first_key), first_column, d_values);
}

template <typename T>
__global__ void __launch_bounds__(kSimtThreads, 2)
    keys_backward_simt_kernel(AttentionBackwardOperands<T> operands, AttentionShape shape) {
  const Backward<T> backward{operands, shape};
  const HeadPiece at = head_piece(pieces_of(shape.sequence_length, kSimtTile), shape.num_kv_heads);
  for_each_document(operands.starts, at, kSimtTile, shape, [&](int first, int end, const Document& document) {
    keys_backward_simt(backward, at, first, end, document);
  });
}

// Queries [first_query, end) of a document.
template <typename T>
__device__ __forceinline__ void queries_backward_simt(const Backward<T>& backward, const HeadPiece& at, int first_query,
                                                      int end, const Document& document) {
  const AttentionShape& shape = backward.shape;
  const BackwardTiles tiles(shared_memory<float>());
  const int first_column = static_cast<int>(blockIdx.y) * kSimtTile;
  const int keys_end = shape.mask == Mask::kCausal ? end : document.end;
  int first_key = static_cast<int>(shape.first_key(first_query, document.begin));
  SimtSums d_queries = {};
  for (; first_key < keys_end; first_key += kSimtTile) {
    const BlockPair pair{at.b, at.head, first_query, first_key, document.end};
    backward.softmax_gradient(pair, tiles);
    load_tile(tiles.b, backward.keys(pair), first_column);
    __syncthreads();
    add_product(
        d_queries, [&](int row, int k) { return tiles.d_scores.at(row, k); },
        [&](int k, int column) { return tiles.b.at(k, column); });
  }
  scale_sums(d_queries, shape.scale);
  write_sums(backward.gradient(shape.query_offset(at.b, at.head, first_query), end - first_query), first_column,
             d_queries);
}

template <typename T>
__global__ void __launch_bounds__(kSimtThreads, 2)
    queries_backward_simt_kernel(AttentionBackwardOperands<T> operands, AttentionShape shape) {
  const Backward<T> backward{operands, shape};
  const HeadPiece at = head_piece(pieces_of(shape.sequence_length, kSimtTile), shape.num_heads);
  for_each_document(operands.starts, at, kSimtTile, shape, [&](int first, int end, const Document& document) {
    queries_backward_simt(backward, at, first, end, document);
  });
}

}  // namespace

void attention_forward_simt(const AttentionForwardArgs& args, CudaStream& stream) {
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    const ForwardOperands<T> operands{args.qkv.data<T>(), data_or_null<int32_t>(args.starts), args.out.data<T>(),
                                      args.lse.data<float>()};
    launch(forward_simt_kernel<T>, simt_launch("attention_forward", args.shape, args.shape.num_heads, 3),
           stream.handle(), operands, args.shape);
  });
}

void attention_backward_simt(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream) {
  constexpr const char* kOp = "attention_backward";
  const AttentionShape& shape = args.shape;
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    const auto operands = backward_operands<T>(args, terms);
    launch(keys_backward_simt_kernel<T>, simt_launch(kOp, shape, shape.num_kv_heads, BackwardTiles::kCount),
           stream.handle(), operands, shape);
    launch(queries_backward_simt_kernel<T>, simt_launch(kOp, shape, shape.num_heads, BackwardTiles::kCount),
           stream.handle(), operands, shape);
  });
}

}  // namespace mantissa::cuda
