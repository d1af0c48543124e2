// Kernels in which element i depends only on elements i of the operands.
//
// An operation is a struct of pointers and numbers with
//   template <int Width> __device__ void apply(int64_t i) const;   // elements i ... i + Width - 1
// It is called with Width = kVectorWidth at multiples of kVectorWidth. It is called with Width = 1 for the remainder
// and for operands that are not 16-byte aligned.
#pragma once

#include "core/cuda/device/device.h"
#include "core/cuda/grid.h"

namespace mantissa::cuda {

template <int Width, typename Operation>
__global__ void elementwise_kernel(Operation operation, int64_t numel) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t whole = numel / Width;
  for (int64_t i = thread; i < whole; i += threads) operation.template apply<Width>(i * Width);
  for (int64_t i = whole * Width + thread; i < numel; i += threads) operation.template apply<1>(i);
}

enum class Alignment : uint8_t { kVectors, kSingle };

template <int Width, typename Operation>
void run_elementwise(const Operation& operation, int64_t numel, Alignment alignment, CudaStream& stream) {
  constexpr int kThreads = 256;
  if (numel == 0) return;
  const int width = alignment == Alignment::kVectors ? Width : 1;
  const LaunchShape shape{.grid = blocks_for(numel, int64_t{kThreads} * width, stream), .block = kThreads};
  if (alignment == Alignment::kVectors) {
    launch(elementwise_kernel<Width, Operation>, shape, stream.handle(), operation, numel);
  } else {
    launch(elementwise_kernel<1, Operation>, shape, stream.handle(), operation, numel);
  }
}

template <typename... T>
Alignment alignment_of(const T*... addresses) {
  return all_aligned(addresses...) ? Alignment::kVectors : Alignment::kSingle;
}

}  // namespace mantissa::cuda
