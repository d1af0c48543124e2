// The machine's GEMM ceiling, for "per cent of measured GEMM peak" in logs and benches.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

// FLOP/s (2 M N K per multiplication) of the fastest way that oneDNN, threaded by itself over all OpenMP threads, has
// to multiply matrices of a transformer's size: several extents and weight layouts, packed in advance included, in
// `dtype` or in fp32, to which any dtype can be widened. Takes about a quarter of a second, twice that for bf16.
double measure_gemm_peak_flops(DType dtype);

}  // namespace mantissa::cpu
