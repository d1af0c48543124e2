// Matrix multiplication on the CPU; the contract is GemmArgs in core/backend/kernel_args.h.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cpu/gemm_bf16.h"
#include "core/cpu/gemm_micro.h"

namespace mantissa::cpu {

void gemm(const GemmArgs& args);

// The same with a given implementation for bf16, for tests and benches.
void gemm(const GemmArgs& args, Bf16Gemm bf16);

// The micro-kernel that multiplies operands of `dtype`, or nullptr where oneDNN does.
const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16);

}  // namespace mantissa::cpu
