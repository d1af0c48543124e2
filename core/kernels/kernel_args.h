// What the argument structs of all kernels share. A kernel's struct stands in <family>/args.h.
//
// Unless a struct says otherwise: "float" means fp32, bf16 or fp16; a kernel computes and accumulates in fp32 and rounds
// once on store; results do not depend on the number of threads. R = rows, C = channels, B = batch (sequences), T =
// positions.
//
// An argument struct has
//   kName             the name of the kernel in profiles and recordings;
//   operands(args)    pointers to all of its tensors, in a fixed order;
// and beside it stand check_args() (ContractError where operands do not fit together; it looks at shapes, dtypes and
// settings, never at device memory), run() of each device, and, where the defaults of kernel_work.h and kernel_call.h do
// not fit, work_of() and variant_of().
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor/tensor.h"

namespace mantissa {

enum class GradientMode : uint8_t { kWrite, kAccumulate };  // dx = ..., or dx += ...

// A tensor seen as a matrix by its last axis.
struct Rows {
  int64_t rows;
  int64_t columns;
};

namespace cuda {
class CudaStream;
}

}  // namespace mantissa
