// out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)), in fp32 without tensor
// cores: for fp32 operands, and for what attention_forward_mma.cu.cc does not take.
//
// The same running softmax over blocks of 64 queries and 64 keys; probabilities are not rounded. A block computes 64
// columns of out; wider heads have several blocks, each of which computes the scores, so that any head dimension fits
// into the same registers and shared memory. Keys come in order: the same bits in every run. Bound by fp32 arithmetic
// and reads of shared memory.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022; Milakov & Gimelshein, 2018.
#include <limits>

#include "core/kernels/attention/paths_cuda.h"
#include "core/kernels/attention/simt_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <typename T>
struct ForwardOperands {
  const T* qkv;
  T* out;
  float* lse;
};

// Over the threads that share a row, which are lanes of one warp.
template <typename Op>
__device__ __forceinline__ float reduce_row(float value, Op op) {
  for (int distance = kSimtSide / 2; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

struct NumberMax {  // NaN loses: it shows in the probabilities
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T>
__global__ void __launch_bounds__(kSimtThreads)
    forward_simt_kernel(ForwardOperands<T> operands, AttentionShape extents) {
  float* shared = shared_memory<float>();
  const SimtTile a{shared}, b{shared + SimtTile::kElements}, probabilities{shared + 2 * SimtTile::kElements};
  const int length = static_cast<int>(extents.sequence_length), first_column = static_cast<int>(blockIdx.y) * kSimtTile;
  const bool causal = extents.mask == Mask::kCausal;
  const HeadPiece at = head_piece(pieces_of(length, kSimtTile), extents.num_heads);
  const int first_query = at.piece * kSimtTile, kv_head = at.head / static_cast<int>(extents.group());
  const int keys_end = causal ? std::min(length, first_query + kSimtTile) : length;
  const auto rows_at = [&](int64_t offset, int first) {
    return simt_rows<const T>(operands.qkv + offset, extents.qkv_row(), extents, first);
  };
  const SimtRows<const T> queries = rows_at(extents.query_offset(at.b, at.head, first_query), first_query);

  SimtSums sums = {};
  float maxima[kSimtPerThread], totals[kSimtPerThread] = {};
  for (float& maximum : maxima) maximum = kLowest;
  for (int first_key = 0; first_key < keys_end; first_key += kSimtTile) {
    SimtSums scores = {};
    add_dot_products(scores, queries, rows_at(extents.key_offset(at.b, kv_head, first_key), first_key), a, b);
    for (int i = 0; i < kSimtPerThread; ++i) {
      const int query = first_query + simt_first_row() + i;
      const auto sees = [&](int j) {
        const int key = first_key + simt_column(j);
        return key < length && !(causal && key > query);
      };
      float largest = maxima[i];
      for (int j = 0; j < kSimtPerThread; ++j) {
        scores[i][j] *= extents.scale;
        if (sees(j)) largest = fmaxf(largest, scores[i][j]);
      }
      largest = reduce_row(largest, NumberMax());
      // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
      const float reference = largest == kLowest ? 0.0f : largest;
      const float correction = expf(maxima[i] - reference);
      maxima[i] = largest;
      totals[i] *= correction;
      for (int j = 0; j < kSimtPerThread; ++j) {
        scores[i][j] = sees(j) ? expf(scores[i][j] - reference) : 0.0f;
        totals[i] += scores[i][j];
        sums[i][j] *= correction;
      }
    }
    store_tile(probabilities, scores);
    load_tile(b, rows_at(extents.value_offset(at.b, kv_head, first_key), first_key), first_column);
    __syncthreads();
    add_product(
        sums, [&](int row, int k) { return probabilities.at(row, k); },
        [&](int k, int column) { return b.at(k, column); });
  }

  for (int i = 0; i < kSimtPerThread; ++i) {
    const float total = reduce_row(totals[i], Sum()), factor = 1.0f / total;
    for (float& sum : sums[i]) sum *= factor;
    const int query = first_query + simt_first_row() + i;
    if (query < length && first_column == 0 && simt_column(0) == 0) {
      operands.lse[extents.lse_offset(at.b, at.head, query)] = maxima[i] + logf(total);
    }
  }
  T* out = operands.out + extents.out_offset(at.b, at.head, first_query);
  write_sums(simt_rows<T>(out, extents.out_row(), extents, first_query), first_column, sums);
}

}  // namespace

void attention_forward_simt(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream) {
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    const ForwardOperands<T> operands{args.qkv.data<T>(), args.out.data<T>(), args.lse.data<float>()};
    const unsigned blocks = head_pieces_grid("attention_forward", pieces_of(extents.sequence_length, kSimtTile),
                                             extents.num_heads, extents.batch);
    launch(forward_simt_kernel<T>,
           {.grid = dim3(blocks, simt_column_blocks(extents)),
            .block = kSimtThreads,
            .shared_bytes = 3 * SimtTile::kElements * sizeof(float)},
           stream.handle(), operands, extents);
  });
}

}  // namespace mantissa::cuda
