// How bf16 matrices are multiplied.
#pragma once

#include <cstdint>

namespace mantissa::cpu {

enum class Bf16Gemm : uint8_t {
  kDotProducts,  // our micro-kernel on bf16 dot products; subnormal inputs and results count as 0
  kLibrary,      // oneDNN, with matrix units where there are any; likewise
  kWidened,      // converted to fp32, exactly, as operands are packed
};

// The fastest on this CPU. A property of its model, not measured, so that a run repeats itself bit for bit.
Bf16Gemm preferred_bf16_gemm();

// Whether this CPU can multiply in this way at all. kWidened always works.
bool is_possible(Bf16Gemm way);

}  // namespace mantissa::cpu
