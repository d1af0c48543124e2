// Matrix multiplication: cuBLASLt on a GPU (gemm_cublaslt.cc), the CPU kernel on the emulated one (gemm_emulated.cc).
#pragma once

#include <string>

#include "core/cuda/runtime/runtime.h"
#include "core/cuda/stream.h"
#include "core/kernels/fp8_gemm_support.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::cuda {

void run(const GemmArgs& args, CudaStream& stream);

// Why matrices cannot be multiplied here (the library is missing); empty if they can. Does not throw.
std::string gemm_unusable_reason();

// Library and version, for the log.
std::string describe_gemm();

// The products of codes that gemm() takes on a device with these properties.
Fp8GemmSupport fp8_gemm_support(const DeviceProperties& device);
// Whose they are, or why there are none: as Backend::describe_fp8_gemm_support().
std::string describe_fp8_gemm_support(const DeviceProperties& device);

}  // namespace mantissa::cuda
