// Matrix multiplication with packed operands and our own micro-kernels.
#pragma once

#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

// Implements GemmArgs. Kernels for bf16 pairs need bf16 operands. Other dtypes are widened to fp32 (exact) when packed.
void gemm_packed(const GemmArgs& args, const MicroKernel& kernel);

// Words of the panels of b that gemm_packed() keeps in args.b_cache. 0: it packs b on every call.
int64_t kept_words(const GemmArgs& args, const MicroKernel& kernel);

}  // namespace mantissa::cpu
