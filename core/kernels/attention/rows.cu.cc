// Attention row by row: the terms of the backward pass for each query, and rows that continue texts.
#include <limits>

#include "core/base/round_up.h"
#include "core/cuda/device/device.h"
#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;

// ---- delta = rowsum(out * d_out) per query and head (Dao 2023, "FlashAttention-2", algorithm 2, line 4), summed in
// fp32, and lse in units of log(2), for exp2.
//
// Eight lanes sum one row: each its own elements in ascending order, then by halves; the order depends on the head
// dimension only. Reads out and d_out once; bound by that.

constexpr int kLanesPerRow = 8, kRowsPerBlock = kThreads / kLanesPerRow;

template <typename T>
struct RowOperands {
  const T *out, *d_out;
  const float* lse;
};

template <int Width, typename T>
__global__ void row_terms_kernel(RowOperands<T> operands, AttentionRowTerms terms, AttentionShape shape) {
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const int64_t rows = shape.batch * terms.padded_length * shape.num_heads;
  // All lanes of a warp stay until its last row, for the sum over lanes.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock; first < rows;
       first += static_cast<int64_t>(gridDim.x) * kRowsPerBlock) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / kLanesPerRow;
    const int64_t head = row % shape.num_heads, position = row / shape.num_heads;
    const int64_t t = position % terms.padded_length, b = position / terms.padded_length;
    const bool exists = row < rows && t < shape.sequence_length;
    float sum = 0.0f;
    if (exists) {
      const int64_t offset = shape.out_offset(b, head, t);
      for (int64_t i = lane * Width; i < shape.head_dim; i += kLanesPerRow * Width) {
        float out[Width], d_out[Width];
        load<Width>(operands.out + offset + i, out);
        load<Width>(operands.d_out + offset + i, d_out);
#pragma unroll
        for (int k = 0; k < Width; ++k) sum += out[k] * d_out[k];
      }
    }
#pragma unroll
    for (int distance = kLanesPerRow / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane != 0 || row >= rows) continue;
    const int64_t to = terms.offset(shape, b, head, t);
    terms.deltas[to] = sum;
    terms.log2_sums[to] =
        exists ? operands.lse[shape.lse_offset(b, head, t)] * kLog2E : std::numeric_limits<float>::infinity();
  }
}

// ---- out = softmax(scale * q k^T) v for rows that continue texts, with keys and values from a cache; and writing to
// it.
//
// A block computes a query head of a row, in chunks of 256 keys with a running softmax (blocks-inl.h has the formula).
// Warps take the keys of a chunk in turns: a lane multiplies its elements of a key in ascending order, and the lanes'
// sums are added by halves. Then each thread adds probabilities times values for its column, over its part of the keys,
// in shared memory; at the end the parts are added in order. Everything is fp32 until out is stored. Bound by the
// latency of reading a text's cache; blocks of the heads that share keys find them in the L2 cache.

constexpr int kWarps = kThreads / kLanes, kChunk = kThreads;
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

template <typename T>
struct Append {
  const T* qkv;
  const int32_t *sequences, *positions;
  T* cache;
  AttentionShape shape;
  int64_t elements;  // of keys and values, in all rows
};

template <typename T>
__global__ void append_kernel(Append<T> append) {
  const AttentionShape& shape = append.shape;
  const int64_t columns = 2 * shape.num_kv_heads * shape.head_dim;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < append.elements; i += step) {
    const int64_t row = i / columns, column = i % columns, head = column / shape.head_dim;
    const int64_t position = append.positions[row];
    if (position < 0) continue;
    append
        .cache[cache_offset(shape, append.sequences[row], head) + position * shape.head_dim + column % shape.head_dim] =
        append.qkv[row * shape.qkv_row() + shape.out_row() + column];
  }
}

template <typename T>
struct Decode {
  const T* qkv;
  const int32_t *sequences, *positions;
  const T* cache;
  T* out;
  AttentionShape shape;
};

// Threads of a block that add up a column, each for its part of the keys.
constexpr int parts_of(int dim) { return dim < kThreads ? kThreads / dim : 1; }

// Shared memory in floats: the query, sums by part and column, a chunk's probabilities, a number for each warp.
constexpr int shared_floats(int dim) { return dim + parts_of(dim) * dim + kChunk + kWarps; }

template <typename T>
__global__ void __launch_bounds__(kThreads) decode_kernel(Decode<T> decode) {
  const AttentionShape& shape = decode.shape;
  const int dim = static_cast<int>(shape.head_dim), parts = parts_of(dim), thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kLanes, lane = thread % kLanes;
  const int64_t row = blockIdx.x / shape.num_heads, head = blockIdx.x % shape.num_heads;
  float* const query = shared_memory<float>();
  float* const sums = query + dim;  // (parts, dim)
  float* const probabilities = sums + parts * dim;
  float* const scratch = probabilities + kChunk;

  const int64_t sequence = decode.sequences[row], kv_head = head / shape.group();
  const T* const keys = decode.cache + cache_offset(shape, sequence, kv_head);
  const T* const values = decode.cache + cache_offset(shape, sequence, shape.num_kv_heads + kv_head);
  const T* const own = decode.qkv + row * shape.qkv_row() + head * dim;
  for (int d = thread; d < dim; d += kThreads) query[d] = widen(own[d]) * shape.scale;
  for (int i = thread; i < parts * dim; i += kThreads) sums[i] = 0.0f;
  __syncthreads();

  float maximum = kNoScore, total = 0.0f;
  const int end = decode.positions[row] + 1;
  for (int first = static_cast<int>(shape.first_key(end - 1)); first < end; first += kChunk) {
    const int count = end - first < kChunk ? end - first : kChunk;
    for (int j = warp; j < count; j += kWarps) {
      const T* const key = keys + static_cast<int64_t>(first + j) * dim;
      float score = 0.0f;
      for (int d = lane; d < dim; d += kLanes) score = fmaf(query[d], widen(key[d]), score);
      score = warp_reduce(score, Sum());
      if (lane == 0) probabilities[j] = score;
    }
    __syncthreads();
    const float score = thread < count ? probabilities[thread] : kNoScore;
    const float before = maximum;
    maximum = fmaxf(maximum, block_reduce(score, NumberMax(), scratch));
    // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
    const float reference = maximum == kNoScore ? 0.0f : maximum;
    const float correction = expf(before - reference);
    const float p = thread < count ? expf(score - reference) : 0.0f;
    probabilities[thread] = p;
    total = total * correction + block_reduce(p, Sum(), scratch);  // ends with a barrier
    for (int i = thread; i < parts * dim; i += kThreads) {
      const int part = i / dim, column = i % dim;
      float sum = sums[i] * correction;
      for (int j = part; j < count; j += parts) {
        sum = fmaf(probabilities[j], widen(values[static_cast<int64_t>(first + j) * dim + column]), sum);
      }
      sums[i] = sum;
    }
    __syncthreads();
  }
  for (int d = thread; d < dim; d += kThreads) {
    float sum = 0.0f;
    for (int part = 0; part < parts; ++part) sum += sums[part * dim + d];
    decode.out[row * shape.out_row() + head * dim + d] = narrow<T>(sum / total);
  }
}

}  // namespace

AttentionRowTerms attention_row_terms(const AttentionBackwardArgs& args, CudaStream& stream) {
  const AttentionShape& shape = args.shape;
  const int64_t padded = round_up(shape.sequence_length, kRowTermsBlock);
  const int64_t rows = shape.batch * shape.num_heads * padded;
  auto* memory = reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(2 * rows) * sizeof(float)));
  const AttentionRowTerms terms{.log2_sums = memory, .deltas = memory + rows, .padded_length = padded};
  dispatch(args.out.dtype(), [&]<typename T>() {
    constexpr int kWidth = kVectorWidth<T>;
    const RowOperands<T> operands{args.out.data<T>(), args.d_out.data<T>(), args.lse.data<float>()};
    const LaunchShape launch_shape{.grid = blocks_for(rows, kRowsPerBlock, stream), .block = kThreads};
    if (all_aligned(operands.out, operands.d_out) && shape.head_dim % kWidth == 0)
      return launch(row_terms_kernel<kWidth, T>, launch_shape, stream.handle(), operands, terms, shape);
    launch(row_terms_kernel<1, T>, launch_shape, stream.handle(), operands, terms, shape);
  });
  return terms;
}

void run(const AttentionAppendArgs& args, CudaStream& stream) {
  const int64_t rows = check_args(args), elements = rows * 2 * args.shape.num_kv_heads * args.shape.head_dim;
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    launch(append_kernel<T>, {.grid = blocks_for(elements, kThreads, stream), .block = kThreads}, stream.handle(),
           Append<T>{args.qkv.data<T>(), args.sequences.data<int32_t>(), args.positions.data<int32_t>(),
                     args.cache.data<T>(), args.shape, elements});
  });
}

void run(const AttentionDecodeArgs& args, CudaStream& stream) {
  const int64_t rows = check_args(args);
  if (rows == 0) return;
  const auto shared = static_cast<size_t>(shared_floats(static_cast<int>(args.shape.head_dim))) * sizeof(float);
  dispatch(args.qkv.dtype(), [&]<typename T>() {
    launch(decode_kernel<T>,
           {.grid = static_cast<unsigned>(rows * args.shape.num_heads), .block = kThreads, .shared_bytes = shared},
           stream.handle(),
           Decode<T>{args.qkv.data<T>(), args.sequences.data<int32_t>(), args.positions.data<int32_t>(),
                     args.cache.data<T>(), args.out.data<T>(), args.shape});
  });
}

}  // namespace mantissa::cuda
