// KernelTimer: the time of a single kernel call, by itself.
#pragma once

#include <memory>
#include <vector>

#include "core/backend/kernel_call.h"

namespace mantissa {

class KernelTimer {
 public:
  // Both must outlive the object. Operands that are to be cold are taken in turns from so much memory that twice
  // `cache_bytes` pass between two uses.
  KernelTimer(Backend& backend, Stream& stream, double cache_bytes)
      : backend_(backend), stream_(stream), cache_bytes_(cache_bytes) {}

  // Seconds of the call with operands of random numbers, cold where `cold` says so: the median of calls, or on a device
  // beside the host of batches of calls, over some 20 ms and at least three.
  double seconds(const KernelCall& call, const std::vector<bool>& cold);

 private:
  // Of each operand the tensors that calls take in turns, one behind the other in memory as parameters are; none where
  // it is undefined.
  std::vector<std::vector<Tensor>> make_operands(const KernelCall& call, const std::vector<bool>& cold);

  Backend& backend_;
  Stream& stream_;
  const double cache_bytes_;
  std::vector<std::shared_ptr<Storage>> memory_;  // by operand, kept for the next call
};

}  // namespace mantissa
