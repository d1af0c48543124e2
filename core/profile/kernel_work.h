// KernelWork: the arithmetic and memory traffic of a call.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa {

// The limit of an operation's speed: this device's arithmetic and memory, or something else (links, other ranks).
enum class Bound : uint8_t { kDevice, kOther };

// FLOP: matrix products, including the two (forward) or five (backward) products inside attention, with 2 for a
// multiply-add. Every other kernel is bound by memory and counts 0.
// Bytes: each operand once if it is read and once if it is written. This is the least traffic that the operation needs,
// with cold caches and without reading anything twice.
struct KernelWork {
  double flops = 0.0;
  double bytes = 0.0;
  DType dtype = DType::kF32;  // of the products' operands; meaningless if flops is 0
  Bound bound = Bound::kDevice;
};

}  // namespace mantissa
