// Rates that a device reaches through its Backend: GEMM speed and memory bandwidth, the ceilings for training speed.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

// (M, K) times (N, K) transposed, as linear layers multiply.
struct ProductSize {
  int64_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// FLOP/s of products of this size through GemmArgs: the fastest batch within 0.15 s. A batch hides launch overhead.
// Operands are random; u8: codes of e4m3 with a bf16 result, if fp8_gemm_support() allows.
double measure_product_flops(Backend& backend, Stream& stream, DType dtype, ProductSize size);

// FLOP/s of the faster of two products in `dtype`, through the GemmArgs of training: 1024 x 3072 x 768 (a transformer's
// size) and, if the device needs less than 1 ms for it, 8192 x 4096 x 4096. The second product needs 84 million
// elements of device memory for a moment. Takes 0.2 to 0.5 s.
double measure_gemm_flops(Backend& backend, Stream& stream, DType dtype);

// Bytes/s of AddArgs on fp32 vectors, two read and one written: 12 bytes an element, as STREAM counts them. A cache
// that fetches lines before it overwrites them moves a third more. Vectors have 16 million elements, too many for a
// cache, or 1 million if these take more than 5 ms. Takes 0.2 s and 192 MiB for a moment.
double measure_memory_bandwidth(Backend& backend, Stream& stream);

}  // namespace mantissa
