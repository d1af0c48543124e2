// Matrix multiplication on the CPU. GemmArgs (core/kernels/gemm/args.h) is the contract.
#pragma once

#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/bf16_cpu.h"
#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

// run(GemmArgs) with a given way of multiplying bf16, for tests and benches.
void gemm(const GemmArgs& args, Bf16Gemm bf16);

// The micro-kernel that multiplies operands of `dtype`, or nullptr where a library does.
const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16);

}  // namespace mantissa::cpu
