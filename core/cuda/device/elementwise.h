// Kernels whose elements do not depend on other threads. An operation is a struct of pointers and numbers. It is called
// with Width = kVectorWidth elements where the addresses allow it, and with Width = 1 otherwise and for remainders.
//
// Elementwise: element i depends only on elements i of the operands.
//   template <int Width> __device__ void apply(int64_t i) const;   // elements i ... i + Width - 1
// Rowwise: an element needs its row and column. These come from the two axes of the grid: a division would cost as much
// as the work.
//   template <int Width> __device__ void apply(int64_t row, int64_t column) const;   // columns column ... + Width - 1
#pragma once

#include <bit>

#include "core/cuda/device/device.h"

namespace mantissa::cuda {

template <int Width, typename Operation>
__global__ void elementwise_kernel(Operation operation, int64_t numel) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t whole = numel / Width;
  for (int64_t i = thread; i < whole; i += threads) operation.template apply<Width>(i * Width);
  for (int64_t i = whole * Width + thread; i < numel; i += threads) operation.template apply<1>(i);
}

// Calls f(value) for the calling thread's elements, divided among threads as in elementwise_kernel().
template <int Width, typename T, typename F>
__device__ __forceinline__ void for_each_element(const T* x, int64_t numel, F f) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t whole = numel / Width;
#pragma unroll 2
  for (int64_t i = thread; i < whole; i += threads) {
    float values[Width];
    load<Width>(x + i * Width, values);
#pragma unroll
    for (int k = 0; k < Width; ++k) f(values[k]);
  }
  for (int64_t i = whole * Width + thread; i < numel; i += threads) f(widen(x[i]));
}

enum class Alignment : uint8_t { kVectors, kSingle };

template <int Width, typename Operation>
void run_elementwise(const Operation& operation, int64_t numel, Alignment alignment, CudaStream& stream) {
  constexpr int kThreads = 256;
  if (numel == 0) return;
  const int width = alignment == Alignment::kVectors ? Width : 1;
  const LaunchShape shape{.grid = blocks_for(numel, int64_t{kThreads} * width, stream), .block = kThreads};
  if (alignment == Alignment::kVectors)
    return launch(elementwise_kernel<Width, Operation>, shape, stream.handle(), operation, numel);
  launch(elementwise_kernel<1, Operation>, shape, stream.handle(), operation, numel);
}

template <typename... T>
Alignment alignment_of(const T*... addresses) {
  return all_aligned(addresses...) ? Alignment::kVectors : Alignment::kSingle;
}

// `across`: number of pieces of Width columns in a row.
template <int Width, typename Operation>
__global__ void rowwise_kernel(Operation operation, int64_t rows, int64_t across) {
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int64_t first_piece = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t piece_step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t piece = first_piece; piece < across; piece += piece_step) {
    for (int64_t row = first_row; row < rows; row += row_step) operation.template apply<Width>(row, piece * Width);
  }
}

struct RowwiseExtents {
  int64_t rows, columns;
  Alignment alignment;  // of all operands
};

template <int Width, typename Operation>
void run_rowwise(const Operation& operation, const RowwiseExtents& extents, CudaStream& stream) {
  constexpr int64_t kThreads = 256, kLargestGridY = 65535;
  if (extents.rows == 0 || extents.columns == 0) return;
  const bool vectors = extents.alignment == Alignment::kVectors && extents.columns % Width == 0;
  const int64_t across = vectors ? extents.columns / Width : extents.columns;
  // The fewest threads that cover the columns, up to kThreads; whole warps if more than a warp.
  const int64_t block_x = across <= kLanes ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(across)))
                                           : std::min(kThreads, (across + kLanes - 1) / kLanes * kLanes);
  const int64_t block_y = kThreads / block_x;
  const int64_t enough = blocks_for(extents.rows * across, block_x * block_y, stream);
  const int64_t grid_y = std::min({(across + block_x - 1) / block_x, enough, kLargestGridY});
  const int64_t grid_x = std::min((extents.rows + block_y - 1) / block_y, (enough + grid_y - 1) / grid_y);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y)),
                          .block = dim3(static_cast<unsigned>(block_x), static_cast<unsigned>(block_y))};
  if (vectors) return launch(rowwise_kernel<Width, Operation>, shape, stream.handle(), operation, extents.rows, across);
  launch(rowwise_kernel<1, Operation>, shape, stream.handle(), operation, extents.rows, across);
}

}  // namespace mantissa::cuda
