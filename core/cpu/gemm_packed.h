// Matrix multiplication with packed operands and our own micro-kernels.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cpu/gemm_micro.h"

namespace mantissa::cpu {

// The contract of GemmArgs. Pairs of bf16 need bf16 operands; any others are widened, exactly, as they are packed.
void gemm_packed(const GemmArgs& args, const MicroKernel& kernel);

}  // namespace mantissa::cpu
