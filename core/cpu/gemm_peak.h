// The machine's GEMM ceiling, for "per cent of measured GEMM peak" in logs and benches.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

// FLOP/s (2 M N K per multiplication) of the fastest way that oneDNN, threaded by itself over all OpenMP threads, has
// to multiply large matrices of `dtype`: as they are, or in fp32, to which any of them can be widened. The best of a
// few repetitions; takes about 150 ms, twice that for bf16.
double measure_gemm_peak_flops(DType dtype);

}  // namespace mantissa::cpu
