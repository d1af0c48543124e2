#include "core/cuda/runtime/check_cuda.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

std::string describe(const char* call, cudaError_t status) {
  return fmt::format("[{}] CUDA error {}: {}", call, cudaGetErrorName(status), cudaGetErrorString(status));
}

}  // namespace

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next launch would report again
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfDeviceMemory(describe(call, status) + "; lower train.micro_batch or model sizes, or use more ranks");
  }
  throw CudaError(describe(call, status));
}

void check_launch(cudaError_t status, const void* kernel) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess) name = "unknown kernel";
  throw CudaError(describe(fmt::format("launch of {}", name).c_str(), status));
}

}  // namespace mantissa::cuda
