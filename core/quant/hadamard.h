// The random Hadamard transform of 16 values, which spreads an outlier over its neighbours before they are rounded.
// Applied to both operands along the dimension that a product sums over, it changes the product only by rounding.
// Source: NVIDIA's NVFP4 recipe, which transforms the operands of weight gradients, with one vector of signs for all.
#pragma once

#include <cstdint>

namespace mantissa {

inline constexpr int64_t kHadamardLength = 16;

// Bit j is set if value j changes its sign before the transform: (j0 and j1) xor (j2 and j3), with j0 ... j3 the bits
// of j. It is a bent function, whose correlation with every row of the matrix is +-4: equal values are spread evenly,
// too.
inline constexpr uint32_t kHadamardSigns = 0x7888u;

constexpr bool hadamard_negates(int64_t value) { return (kHadamardSigns >> value & 1u) != 0; }

}  // namespace mantissa
