// KernelWork: what a kernel call has to compute and to move, counted from its arguments. Device-free.
//
// FLOP: those of matrix products, and of the two (forward) or five (backward) products inside attention; a multiply-add
// counts 2. Every other kernel is bound by memory and counts 0.
// Bytes: each operand once where it is read and once where it is written: the least traffic that the operation needs,
// with cold caches and without reading anything twice.
#pragma once

#include <string>

#include "core/kernels/kernel_args.h"

namespace mantissa {

// What limits the speed of an operation: this device's units and memory, or something else (links, other ranks).
enum class Bound : uint8_t { kDevice, kOther };

struct KernelWork {
  double flops = 0.0;
  double bytes = 0.0;
  DType dtype = DType::kF32;  // of the products' operands; meaningless where flops is 0
  Bound bound = Bound::kDevice;
};

inline KernelWork traffic(double bytes) { return {.bytes = bytes}; }

// Sum over tensors, of which some may be undefined.
template <typename... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + (tensors.defined() ? static_cast<double>(tensors.size_bytes()) : 0.0));
}

// kAccumulate reads a result before it is written.
inline double result_bytes(const Tensor& tensor, GradientMode mode) {
  return bytes_of(tensor) * (mode == GradientMode::kAccumulate ? 2.0 : 1.0);
}

// The default: each operand is read or written once. Kernels of which that is not so overload it in their args.h.
template <typename Args>
KernelWork work_of(const Args& args) {
  double bytes = 0.0;
  for (const Tensor* const tensor : Args::operands(args)) bytes += bytes_of(*tensor);
  return traffic(bytes);
}

// What the time of a call depends on besides the dtypes and shapes of its operands. The default: nothing.
template <typename Args>
std::string variant_of(const Args&) {
  return {};
}

// A copy within the device's memory, or over the link between host and device (Bound::kOther).
inline KernelWork work_of_copy(const Tensor& src, const Tensor& dst) {
  if (src.device().kind == dst.device().kind) return traffic(bytes_of(src, dst));
  return {.bytes = bytes_of(src), .bound = Bound::kOther};
}

// `tensor` to or from host memory.
inline KernelWork work_of_transfer(const Tensor& tensor) {
  if (tensor.device().kind == Device::Kind::kCpu) return traffic(2.0 * bytes_of(tensor));
  return {.bytes = bytes_of(tensor), .bound = Bound::kOther};
}

}  // namespace mantissa
