// add: the residual connection, by itself or by the norm that reads the sum.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// a + b, equal shapes; the sum is fp32, rounded once to the dtype that the layer's precision gives to add (by default
// the widest input, which keeps a residual stream in fp32).
Var add(Tape& tape, const Var& a, const Var& b);

// A sum that is left to the norm behind it, which makes it on the way (add_layer_norm, add_rms_norm): one pass over
// memory instead of two, with the same values. Or a value that is there already: a, without b.
struct DeferredSum {
  Var a{}, b{};
  DType dtype = DType::kF32;  // of the sum

  bool is_deferred() const { return b.value.defined(); }
};

// add(a, b) of the tape's layer, put off. Where every op is looked at (Tape::shows_every_op), and for a sum of another
// dtype than either, it is done at once.
DeferredSum defer_add(Tape& tape, Var a, Var b);

// The sum, done now if it was put off: the same values.
Var add(Tape& tape, const DeferredSum& sum);

// What a norm that makes a sum returns: the sum goes on as the residual stream.
struct NormedSum {
  Var sum, normed;
};

// --- for norms
// Records that `value` is the deferred sum, as add() would have: its gradient becomes that of both addends, the same
// tensor where the dtypes are equal.
Var record_sum(Tape& tape, const DeferredSum& sum, Tensor value);

}  // namespace mantissa
