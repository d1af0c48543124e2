// Does another library's plan do what our kernels do? Tried on made-up operands, finite ones first.
#pragma once

#include <string>

#include "core/kernels/attention/engine_cuda.h"

namespace mantissa::cuda {

// Why the plan is not to be used for operands in the form of `args`, whose values are not read; empty if nothing speaks
// against it. Compared with our kernels of the same pass:
//   - out and lse, or the gradients, on finite operands, within what rounding explains;
//   - with one NaN or Inf among the operands: where ours gives no number, the plan must not give one. Then a fault
//     shows in out, lse and gradients whoever computes. Of a query whose scores are all -Inf, it is enough if lse is
//     NaN or -Inf, of which our backward pass makes NaN.
// Passes that must give the same bits in every run are run twice on the finite operands.
//
// Waits for the stream, which must not be captured. The plan runs in memory of its own, which is free again when the
// call returns, as are the operands. CudaError, or OutOfDeviceMemory where there is none for them.
std::string objection(AttentionPlan& plan, AttentionPass pass, const AttentionForwardArgs& args,
                      const AttentionShape& extents, CudaStream& stream);
std::string objection(AttentionPlan& plan, AttentionPass pass, const AttentionBackwardArgs& args,
                      const AttentionShape& extents, CudaStream& stream);

}  // namespace mantissa::cuda
