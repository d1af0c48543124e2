// Matrix multiplication by oneDNN, for processors with matrix units (Intel's AMX).
#pragma once

#include "core/kernels/gemm/args.h"

namespace mantissa::cpu {

// The contract of GemmArgs, with fp32 or bf16 operands.
void gemm_library(const GemmArgs& args);

}  // namespace mantissa::cpu
