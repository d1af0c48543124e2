// Common parts of all kernels' argument structs, and how the KernelWork of a call is counted from them. Device-free.
// The struct of a kernel is in <family>/args.h; plain records that others need as well are in <family>/records.h.
//
// Unless a struct says otherwise: "float" means fp32, bf16 or fp16; a kernel computes and accumulates in fp32 and
// rounds once on store; results do not depend on the number of threads. On a CPU float also means fp64. Then all of a
// call's float tensors are fp64 (except in CastArgs), also tensors that a struct calls fp32, and the kernel computes in
// fp64 (core/kernels/fp64). R = rows, C = channels, B = batch (sequences), T = positions.
//
// An argument struct has
//   kName             the name of the kernel in profiles and recordings;
//   operands(args)    pointers to all of its tensors, in a fixed order.
// Its args.h also declares the kernel (MANTISSA_DECLARE_KERNEL) and, if the defaults below do not fit, work_of() and
// variant_of(). check_args() throws ContractError if operands do not fit together. It reads shapes, dtypes and
// settings, never device memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/profile/kernel_work.h"
#include "core/tensor/tensor.h"

namespace mantissa {

namespace cuda {
class CudaStream;
}

// Declares check_args(), which returns Checked, and run() for each device, of the kernel with this argument struct;
// also the one for fp64 operands on a CPU (core/kernels/fp64).
#define MANTISSA_DECLARE_KERNEL(Args, Checked)    \
  Checked check_args(const Args& args);           \
  namespace cpu {                                 \
  void run(const Args& args);                     \
  namespace fp64 {                                \
  void run(const Args& args);                     \
  }                                               \
  }                                               \
  namespace cuda {                                \
  void run(const Args& args, CudaStream& stream); \
  }

// For operands() of many tensors.
constexpr auto addresses_of(auto&... tensors) { return std::array{&tensors...}; }

inline KernelWork traffic(double bytes) { return {.bytes = bytes}; }

// Sum over tensors; undefined ones count 0.
template <typename... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + (tensors.defined() ? static_cast<double>(tensors.size_bytes()) : 0.0));
}

// kAccumulate reads a result before it is written.
inline double result_bytes(const Tensor& tensor, GradientMode mode) {
  return bytes_of(tensor) * (mode == GradientMode::kAccumulate ? 2.0 : 1.0);
}

// Default: each operand is read or written once.
template <typename Args>
KernelWork work_of(const Args& args) {
  double bytes = 0.0;
  for (const Tensor* const tensor : Args::operands(args)) bytes += bytes_of(*tensor);
  return traffic(bytes);
}

// Settings that change the time of a call, besides the dtypes and shapes of its operands. Default: none.
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
