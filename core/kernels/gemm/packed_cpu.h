// Matrix multiplication with packed operands and our own micro-kernels.
#pragma once

#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

// The contract of GemmArgs. Pairs of bf16 need bf16 operands; any others are widened, exactly, as they are packed.
void gemm_packed(const GemmArgs& args, const MicroKernel& kernel);

// Words of the panels of b that this leaves in a cache, or finds there. 0: it packs b each time.
int64_t kept_words(const GemmArgs& args, const MicroKernel& kernel);

}  // namespace mantissa::cpu
