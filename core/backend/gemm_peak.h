// The GEMM rate that this device reaches: the ceiling that training speed is compared with.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

// (M, K) times (N, K) transposed, as linear layers multiply.
struct ProductSize {
  int64_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// FLOP/s of products of this size through Backend::gemm: of the fastest of what fits into 0.15 s, queued so many at a
// time that starting them does not count. Operands are random. Of u8, they are codes of e4m3 and the result is bf16, on
// a device whose fp8_gemm_support() take them.
double measure_product_flops(Backend& backend, Stream& stream, DType dtype, ProductSize size);

// FLOP/s of the fastest of a few products in `dtype`, through the same Backend::gemm that training uses: of a
// transformer's size (1024 x 3072 x 768) and, on a device that does this one in less than 1 ms, of 8192 x 4096 x 4096,
// which takes 84 million elements of device memory for a moment. Takes 0.2 to 0.5 s.
double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype);

}  // namespace mantissa
