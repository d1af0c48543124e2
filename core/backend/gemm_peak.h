// The GEMM rate that this device reaches: the ceiling that training speed is compared with.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

// FLOP/s of the fastest of a few products of a transformer's size (1024 x 3072 x 768) in `dtype`, through the same
// Backend::gemm that training uses. Takes about 0.2 s.
double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype);

}  // namespace mantissa
