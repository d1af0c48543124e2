// How a branch joins the residual stream: dropout, and add, an op of its own or fused into the norm of the sum.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// a + b, equal shapes; the sum is fp32, rounded once to the layer's dtype for add (default: the widest input's).
Var add(Tape& tape, const Var& a, const Var& b);

// A sum for the next norm to compute (add_layer_norm, add_rms_norm): the same values in one pass. Without b: a.
struct DeferredSum {
  Var a{}, b{};
  DType dtype = DType::kF32;  // of the sum

  bool is_deferred() const { return b.value.defined(); }
};

// Defers add(a, b) of the tape's layer. At once if Tape::shows_every_op() or its dtype differs from both addends'.
DeferredSum defer_add(Tape& tape, Var a, Var b);

Var add(Tape& tape, const DeferredSum& sum);  // computes the sum now if it is deferred: the same values

// Result of a norm that computes a sum. The sum continues the residual stream.
struct NormedSum {
  Var sum, normed;
};

// --- for norms
// Records `value` as the deferred sum, as add() would. Its gradient, one tensor if dtypes agree, is both addends'.
Var record_sum(Tape& tape, const DeferredSum& sum, Tensor value);

// --- dropout
// Zeroes elements with a given probability and scales the rest (Srivastava et al. 2014).

// x (samples * positions, C); `samples` is the number of sequences in x. The mask depends on (seed, step, global
// sample, element, op number) only, not on ranks or micro-batches. Returns x for probability 0 or evaluation.
Var dropout(Tape& tape, Var x, float probability, int64_t samples);

}  // namespace mantissa
