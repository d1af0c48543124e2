// Matrix multiplication on the CPU. GemmArgs (core/kernels/gemm/args.h) is the contract.
#pragma once

#include <cstdint>

#include "core/kernels/gemm/args.h"

namespace mantissa::cpu {

struct MicroKernel;

// The ways to multiply bf16 matrices.
enum class Bf16Gemm : uint8_t {
  kDotProducts,  // our micro-kernel on bf16 dot products; subnormal inputs and results count as 0
  kLibrary,      // oneDNN, with matrix units if available; subnormal inputs and results count as 0
  kWidened,      // widened to fp32 (exact) when operands are packed
};

// The fastest on this CPU. Determined by the CPU model, not measured, so that a run is reproducible bit for bit.
Bf16Gemm preferred_bf16_gemm();

// Whether this CPU supports it. kWidened always works.
bool is_possible(Bf16Gemm way);

// run(GemmArgs) with a given way of multiplying bf16, for tests and benches.
void gemm(const GemmArgs& args, Bf16Gemm bf16);

// The micro-kernel that multiplies operands of `dtype`, or nullptr where a library does.
const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16);

// The product by oneDNN, with fp32 or bf16 operands.
void gemm_library(const GemmArgs& args);

// The product of fp32 matrices a and b rounded to tf32, as tensor cores compute it (Fp32Math::kTf32): rounded to 10
// mantissa bits (to nearest, ties to even), summed in fp32. NaN stays NaN; values that round beyond the range become
// Inf. bias_gradient sums the unrounded a. b_cache keeps the rounded b.
void gemm_tf32(const GemmArgs& args);

// The machine's GEMM ceiling, for "per cent of measured GEMM peak" in logs and benches: the highest FLOP/s (2 M N K per
// multiplication) that oneDNN reaches on matrices of a transformer's size, with its own threading over all OpenMP
// threads. Tries several extents and weight layouts, including weights packed in advance. Measures fp32, to which any
// dtype can be widened, and for bf16 also bf16. Takes about 0.25 s, twice that for bf16.
double measure_gemm_peak_flops(DType dtype);

}  // namespace mantissa::cpu
