// swiglu: silu(gate) * up (Shazeer 2020).
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// x (R, 2*F): gate, then up. Returns (R, F) in the dtype that the layer's precision gives to swiglu.
Var swiglu(Tape& tape, Var x);

}  // namespace mantissa
