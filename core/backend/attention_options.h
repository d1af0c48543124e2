// Who computes attention, where a device leaves a choice. Device-free.
#pragma once

#include <cstdint>

namespace mantissa {

// kOwn: our kernels.
// kAuto: cuDNN's in the forward pass, where they agree with ours at the first use of a shape, on NaN and Inf too, give
// the same bits in every run and need no memory that grows with T * T; otherwise, and in the backward pass, ours.
// kCudnn: cuDNN's in both passes, and an error where they cannot be used. Gradients differ in the last bits from run to
// run; with GemmSelection::kDeterministic they do not, but need a workspace of B * H * T * T elements.
enum class AttentionChoice : uint8_t { kAuto, kOwn, kCudnn };

}  // namespace mantissa
