// The machine's GEMM ceiling, for "per cent of measured GEMM peak" in logs and benches.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

// The highest FLOP/s (2 M N K per multiplication) that oneDNN reaches on matrices of a transformer's size, with its own
// threading over all OpenMP threads. Tries several extents and weight layouts, including weights packed in advance.
// Measures fp32, to which any dtype can be widened, and for bf16 also bf16. Takes about 0.25 s, twice that for bf16.
double measure_gemm_peak_flops(DType dtype);

}  // namespace mantissa::cpu
