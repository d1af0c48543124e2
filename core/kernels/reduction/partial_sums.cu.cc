// out[c] (+)= sum over k of partials[k][c], in fp32: warp w adds the chunks w, w + W, w + 2 W, ... in that order, then
// the W warps' sums are added in order of w. W depends on the number of chunks alone. Bound by the latency of the
// caches, in which the partial sums still lie: hence many warps and few chunks for each.
#include "core/kernels/reduction/partial_sums_cuda.h"

#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

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
  const auto tiles = static_cast<unsigned>((sums.columns + kLanes - 1) / kLanes);
  const LaunchShape shape{.grid = dim3(tiles, second.out != nullptr ? 2 : 1),
                          .block = dim3(kLanes, warps),
                          .shared_bytes = warps * kLanes * sizeof(float)};
  launch(add_partial_sums_kernel, shape, stream.handle(), sums, first, second);
}

}  // namespace mantissa::cuda
