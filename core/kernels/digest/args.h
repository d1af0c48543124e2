// Digests of tensors.
#pragma once

#include "core/kernels/digest/digest.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

// Adds the digest of x (any dtype and shape) to the Digest that `record` holds.
struct DigestArgs {
  static constexpr std::string_view kName = "digest";
  Tensor x{};
  Tensor record{};  // u8 of one Digest

  static auto operands(auto& args) { return std::array{&args.x, &args.record}; }
};

MANTISSA_DECLARE_KERNEL(DigestArgs, void)

KernelWork work_of(const DigestArgs& args);

}  // namespace mantissa
