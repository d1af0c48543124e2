// Options for the way a device computes. Plain data; see `cuda.*` in configs/reference.yaml.
#pragma once

#include <cstdint>

namespace mantissa {

// How fp32 operands are multiplied. kTf32: rounded to 10 mantissa bits first and summed in fp32, for which tensor cores
// are several times as fast; a CPU does the same by emulation. 16-bit operands do not depend on it.
enum class Fp32Math : uint8_t { kFull, kTf32 };

// How to choose among the kernels that a library has for a product. They add in different orders.
//
// kTimed: the fastest in a short test at the first use of a shape. The test is repeated up to twice if its times
// scatter by more than 10 %, as on a GPU that others use; if they still do, the library's own first choice is taken.
// The choice is kept on disk, so that all ranks of a machine and later runs choose alike. If no folder is writable, two
// runs may differ in the last bits. kDeterministic: the library's own first choice. No measurement decides, so that the
// same GPU model and library version give the same bits in every process and on every machine.
enum class GemmSelection : uint8_t { kTimed, kDeterministic };

// Whether products of 8-bit operands run natively (Backend::fp8_gemm_support()). kEmulated: never.
enum class NarrowMath : uint8_t { kAuto, kEmulated };

struct GemmOptions {
  GemmSelection selection = GemmSelection::kTimed;
  NarrowMath narrow_math = NarrowMath::kAuto;
  bool operator==(const GemmOptions&) const = default;
};

// kOwn: our kernels.
// kAuto: cuDNN's in the forward pass if they agree with ours at the first use of a shape (on NaN and Inf too), give the
// same bits in every run, and need no memory that grows with T * T. Otherwise, and in the backward pass, ours.
// kCudnn: cuDNN's in both passes, and an error if they cannot be used. Gradients differ in the last bits from run to
// run. With GemmSelection::kDeterministic they do not, but need a workspace of B * H * T * T elements.
enum class AttentionChoice : uint8_t { kAuto, kOwn, kCudnn };

}  // namespace mantissa
