// A task of a matrix multiplication: one block of c, on the calling thread.
#pragma once

#include "core/kernels/gemm/job_cpu.h"

namespace mantissa::cpu {

// Words of K processed at a time. A panel of b (48 columns) then takes 192 KiB.
constexpr int64_t kStretchWords = 1024;

// Adds the products of a block of the operands to a part of c (whole tiles of the micro-kernel). After the last block
// of K the part of c is final, with bias and activation. With job.own_columns the block is all of b.
void run_gemm_task(const GemmJob& job, const GemmBlock& block, const GemmPart& part);

}  // namespace mantissa::cpu
