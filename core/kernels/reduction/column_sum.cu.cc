// out[c] (+)= sum over rows of x[r][c], in fp32. A block sums a chunk of rows of a tile of columns: each of its eight
// warps every eighth row, then the warps in order; add_partial_sums() adds the chunks. Bound by memory: x is read once,
// 16 bytes at a time where it is aligned. The division into chunks depends on the shape alone.
//
// add_partial_sums(): warp w adds the chunks w, w + W, w + 2 W, ... in that order, then the W warps' sums are added in
// order of w. W depends on the number of chunks alone. Bound by the latency of the caches, which still hold the partial
// sums: hence many warps and few chunks for each.
#include "core/kernels/reduction/args.h"

#include "core/cuda/device/device.h"
#include "core/kernels/reduction/partial_sums_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kWarps = 8;

template <typename T>
struct ColumnSum {
  const T* x;
  float* partials;  // (chunks, columns)
  int64_t rows, columns, rows_per_chunk;
};

// grid (tiles of 32 * Width columns, chunks), block (32, kWarps).
template <int Width, typename T>
__global__ void __launch_bounds__(kLanes* kWarps) column_sum_kernel(ColumnSum<T> p) {
  constexpr int kTile = kLanes * Width;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t column = tile + static_cast<int64_t>(threadIdx.x) * Width;
  const int64_t begin = blockIdx.y * p.rows_per_chunk;
  const int64_t end = std::min(begin + p.rows_per_chunk, p.rows);
  float* const warp_sums = shared_memory<float>();  // (kWarps, kTile)

  float sums[Width] = {};
  if (column < p.columns) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kWarps) {
      float values[Width];
      load<Width>(p.x + row * p.columns + column, values);
#pragma unroll
      for (int i = 0; i < Width; ++i) sums[i] += values[i];
    }
  }
  store<Width>(warp_sums + threadIdx.y * kTile + threadIdx.x * Width, sums);
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  if (thread >= kTile || tile + thread >= p.columns) return;
  float sum = warp_sums[thread];
  for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp * kTile + thread];
  p.partials[blockIdx.y * p.columns + tile + thread] = sum;
}

template <int Width, typename T>
void launch_column_sum(const ColumnSum<T>& p, int64_t chunks, CudaStream& stream) {
  constexpr int kTile = kLanes * Width;
  static_assert(kTile <= kLanes * kWarps, "a thread for each column of a tile");
  const auto tiles = static_cast<unsigned>(divide_up(p.columns, kTile));
  launch(column_sum_kernel<Width, T>,
         {.grid = dim3(tiles, static_cast<unsigned>(chunks)),
          .block = dim3(kLanes, kWarps),
          .shared_bytes = kWarps * kTile * sizeof(float)},
         stream.handle(), p);
}

// Enough chunks to give every multiprocessor of a large device its eight blocks; a chunk has four rows for each warp.
RowChunks chunks_for(const Rows& rows) {
  return divide_rows(rows.rows, {.min_rows = 4 * kWarps,
                                 .max_chunks = std::clamp<int64_t>((int64_t{1} << 18) / rows.columns, 1, 1024)});
}

constexpr int kMaxWarps = 32;

// grid (tiles of 32 columns, targets), block (32 columns, W).
__global__ void __launch_bounds__(kMaxWarps* kLanes)
    add_partial_sums_kernel(PartialSums sums, SumTarget first, SumTarget second) {
  const SumTarget target = blockIdx.y == 0 ? first : second;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float* const warp_sums = shared_memory<float>();  // (W, 32)
  float sum = 0.0f;
  if (column < sums.columns) {
    const float* const from = sums.partials + blockIdx.y * sums.chunks * sums.columns + column;
#pragma unroll 8
    for (int64_t chunk = threadIdx.y; chunk < sums.chunks; chunk += blockDim.y) sum += from[chunk * sums.columns];
  }
  warp_sums[threadIdx.y * kLanes + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= sums.columns) return;
  for (unsigned warp = 1; warp < blockDim.y; ++warp) sum += warp_sums[warp * kLanes + threadIdx.x];
  target.out[column] = target.mode == GradientMode::kAccumulate ? target.out[column] + sum : sum;
}

}  // namespace

void add_partial_sums(const PartialSums& sums, const SumTarget& first, const SumTarget& second, CudaStream& stream) {
  const auto warps = static_cast<unsigned>(std::clamp<int64_t>(sums.chunks, 1, kMaxWarps));
  const auto tiles = static_cast<unsigned>(divide_up(sums.columns, kLanes));
  const LaunchShape shape{.grid = dim3(tiles, second.out != nullptr ? 2 : 1),
                          .block = dim3(kLanes, warps),
                          .shared_bytes = warps * kLanes * sizeof(float)};
  launch(add_partial_sums_kernel, shape, stream.handle(), sums, first, second);
}

void run(const ColumnSumArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  const RowChunks chunks = chunks_for(rows);
  auto* const partials =
      reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(chunks.count * rows.columns) * sizeof(float)));
  dispatch(args.x.dtype(), [&]<typename T>() {
    const ColumnSum<T> p{args.x.data<T>(), partials, rows.rows, rows.columns, chunks.rows_per_chunk};
    if (chunks.count == 0) return;
    if (all_aligned(p.x) && rows.columns % kVectorWidth<T> == 0) {
      launch_column_sum<kVectorWidth<T>>(p, chunks.count, stream);
    } else {
      launch_column_sum<1>(p, chunks.count, stream);
    }
  });
  add_partial_sums({partials, chunks.count, rows.columns}, {args.out.data<float>(), args.mode}, {}, stream);
}

}  // namespace mantissa::cuda
