// delta = rowsum(out * d_out) per query and head (Dao 2023, "FlashAttention-2", algorithm 2, line 4), summed in fp32,
// and lse in units of log(2), for exp2.
//
// Eight lanes sum one row: each its own elements in ascending order, then by halves; the order depends on the head
// dimension only. Reads out and d_out once; bound by that.
#include <limits>

#include "core/base/round_up.h"
#include "core/cuda/device/device.h"
#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256, kLanesPerRow = 8, kRowsPerBlock = kThreads / kLanesPerRow;

template <typename T>
struct RowOperands {
  const T* out;
  const T* d_out;
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
    for (int distance = kLanesPerRow / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    if (lane != 0 || row >= rows) continue;
    const int64_t to = terms.offset(shape, b, head, t);
    terms.deltas[to] = sum;
    terms.log2_sums[to] =
        exists ? operands.lse[shape.lse_offset(b, head, t)] * kLog2E : std::numeric_limits<float>::infinity();
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
    if (all_aligned(operands.out, operands.d_out) && shape.head_dim % kWidth == 0) {
      launch(row_terms_kernel<kWidth, T>, launch_shape, stream.handle(), operands, terms, shape);
    } else {
      launch(row_terms_kernel<1, T>, launch_shape, stream.handle(), operands, terms, shape);
    }
  });
  return terms;
}

}  // namespace mantissa::cuda
