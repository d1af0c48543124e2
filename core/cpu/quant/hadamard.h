// The random Hadamard transform along the rows of a matrix.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void hadamard(const HadamardArgs& args);

}  // namespace mantissa::cpu
