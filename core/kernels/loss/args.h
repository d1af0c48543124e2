// Cross-entropy over a vocabulary.
#pragma once

#include "core/kernels/kernel_args.h"

namespace mantissa {

enum class Softcap : uint8_t { kNone, kGiven };  // for kernels with a variant for each

// A positive softcap c takes the place of each logit z by c tanh(z / c), in fp32: logits stay within c, and their order
// does not change. Inf becomes NaN, so that an overflow does not vanish.
//
// logits (R, V) float; targets (R) i32 in [0, V) or ignore_index. losses (R) fp32 = lse - logit[target], 0 if
// ignored; lse (R) fp32; loss_sum (1) fp32, summed in row order in double. Logits do not change.
struct CrossEntropyForwardArgs {
  static constexpr std::string_view kName = "cross_entropy_forward";
  Tensor logits{}, targets{}, losses{}, lse{}, loss_sum{};
  int32_t ignore_index = -100;
  float softcap = 0.0f;  // 0: none

  static auto operands(auto& a) { return std::array{&a.logits, &a.targets, &a.losses, &a.lse, &a.loss_sum}; }
};

// Overwrites logits with scale * (softmax - onehot), times 1 - tanh(z / c)^2 with a softcap, and rows of ignored
// targets with 0, so that no second copy is stored. scale (1) fp32 is the gradient of the loss, read when the kernel
// runs.
struct CrossEntropyBackwardArgs {
  static constexpr std::string_view kName = "cross_entropy_backward";
  Tensor logits{}, targets{}, lse{}, scale{};
  int32_t ignore_index = -100;
  float softcap = 0.0f;  // 0: none

  static auto operands(auto& a) { return std::array{&a.logits, &a.targets, &a.lse, &a.scale}; }
};

MANTISSA_DECLARE_KERNEL(CrossEntropyForwardArgs, Rows)   // logits
MANTISSA_DECLARE_KERNEL(CrossEntropyBackwardArgs, Rows)  // logits

KernelWork work_of(const CrossEntropyBackwardArgs& args);

}  // namespace mantissa
