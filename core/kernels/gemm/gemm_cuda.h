// Matrix multiplication: cuBLASLt on a GPU (gemm_cublaslt.cc), the CPU kernel on the emulated one (gemm_emulated.cc).
#pragma once

#include <functional>
#include <string>

#include "core/cuda/runtime/runtime.h"
#include "core/cuda/stream.h"
#include "core/kernels/fp8_gemm_support.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::cuda {

// Why matrices cannot be multiplied here (the library is missing); empty if they can. Does not throw.
std::string gemm_unusable_reason();

// Library and version, for the log.
std::string describe_gemm();

// The products of 8-bit codes that a device with these properties can run.
Fp8GemmSupport fp8_gemm_support(const DeviceProperties& device);
// The library that multiplies them, or the reason if no library does: as Backend::describe_fp8_gemm_support().
std::string describe_fp8_gemm_support(const DeviceProperties& device);

// The emulated GPU only, for tests of the code between run(GemmArgs) and a library: `multiply` replaces the CPU's
// kernel on all streams. Its arguments have passed check_args(). An empty function restores the CPU's kernel.
using EmulatedGemm = std::function<void(const GemmArgs& args, CudaStream& stream)>;
void replace_emulated_gemm(EmulatedGemm multiply);

}  // namespace mantissa::cuda
