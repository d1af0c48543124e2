// dropout: zeroes elements with a given probability and scales the rest (Srivastava et al. 2014).
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// x (samples * positions, C); `samples` is the number of sequences in x. The mask is a function of (seed, step, global
// sample, element, op number) only: it does not depend on the number of ranks or micro-batches. Returns x if the
// probability is 0 or the tape is for evaluation.
Var dropout(Tape& tape, Var x, float probability, int64_t samples);

}  // namespace mantissa
