// Choice of the implementation for bf16 matrix products.
#pragma once

#include <cstdint>

namespace mantissa::cpu {

enum class Bf16Gemm : uint8_t {
  kDotProducts,  // our micro-kernel on bf16 dot products; subnormal inputs and results count as 0
  kLibrary,      // oneDNN, with matrix units if available; subnormal inputs and results count as 0
  kWidened,      // widened to fp32 (exact) when operands are packed
};

// The fastest on this CPU. Determined by the CPU model, not measured, so that a run is reproducible bit for bit.
Bf16Gemm preferred_bf16_gemm();

// Whether this CPU supports it. kWidened always works.
bool is_possible(Bf16Gemm way);

}  // namespace mantissa::cpu
