// What multiplies matrices on the emulated GPU.
#pragma once

#include <functional>

#include "core/cuda/stream.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::cuda {

// Takes the arguments of gemm(); they have passed check_args().
using EmulatedGemm = std::function<void(const GemmArgs& args, CudaStream& stream)>;

// For tests of what stands between gemm() and a library: from now on on all streams, `multiply` is called in place of
// the CPU's kernel. Empty: that kernel again.
void replace_emulated_gemm(EmulatedGemm multiply);

}  // namespace mantissa::cuda
