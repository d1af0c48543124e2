#include "core/ops/cross_entropy.h"

#include "core/kernels/loss/args.h"

namespace mantissa {

LossOutput cross_entropy(Tape& tape, Var logits, const Tensor& targets, float softcap) {
  const int64_t rows = logits.value.dim(0);
  MANTISSA_CHECK(targets.dtype() == DType::kI32 && targets.numel() == rows,
                 "[cross_entropy] targets must be {} values of i32, got {} of {}", rows, targets.numel(),
                 targets.dtype());
  const DType wide = wide_of(logits.value.dtype());
  const Tensor losses = tape.allocate(wide, {rows}), lse = tape.allocate(wide, {rows});
  Tensor sum = tape.allocate(wide, {1});
  tape.run(CrossEntropyForwardArgs{.logits = logits.value,
                                   .targets = targets,
                                   .losses = losses,
                                   .lse = lse,
                                   .loss_sum = sum,
                                   .ignore_index = kIgnoreIndex,
                                   .softcap = softcap});
  Var recorded = tape.record(Op::kCrossEntropy, std::move(sum), {logits}, {},
                             [logits, targets, lse, softcap](Tape& t, Tensor d_loss) {
                               t.run(CrossEntropyBackwardArgs{.logits = logits.value,
                                                              .targets = targets,
                                                              .lse = lse,
                                                              .scale = d_loss,
                                                              .ignore_index = kIgnoreIndex,
                                                              .softcap = softcap});
                               t.give_gradient(logits, logits.value);
                             });
  return {std::move(recorded), losses};
}

}  // namespace mantissa
