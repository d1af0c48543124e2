// How bf16 matrices are multiplied.
#pragma once

#include <cstdint>

namespace mantissa::cpu {

enum class Bf16Gemm : uint8_t {
  kNative,   // bf16 dot products; subnormal inputs and results count as 0
  kWidened,  // converted to fp32, exactly, tile by tile
};

// The faster one on this CPU. A property of its model, not measured, so that a run repeats itself bit for bit.
Bf16Gemm preferred_bf16_gemm();

// Whether oneDNN can do kNative here at all (emulated at worst). kWidened always works.
bool native_bf16_gemm_is_possible();

}  // namespace mantissa::cpu
