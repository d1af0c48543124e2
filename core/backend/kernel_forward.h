// ForwardsAllKernels: implements every run() of a Backend by one member function template of the device or decorator,
//   template <typename Args> void call(const Args& args, Stream& stream);
// Overloads may handle single kernels. A device that lacks a kernel does not compile.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

template <typename Device, typename Base = Backend>
class ForwardsAllKernels : public Base {
 public:
  using Base::Base;
  using Base::run;

 private:
  void run_kernel(ComputeKernels list, int64_t index, const void* args, Stream& stream) override {
    forward(list, index, args, stream);
  }
  void run_kernel(OptimizerKernels list, int64_t index, const void* args, Stream& stream) override {
    forward(list, index, args, stream);
  }
  void run_kernel(ReductionKernels list, int64_t index, const void* args, Stream& stream) override {
    forward(list, index, args, stream);
  }
  void run_kernel(ProbeKernels list, int64_t index, const void* args, Stream& stream) override {
    forward(list, index, args, stream);
  }

  template <typename... Args>
  void forward(KernelList<Args...>, int64_t index, const void* args, Stream& stream) {
    using Call = void (*)(Device&, const void*, Stream&);
    static constexpr Call kCalls[] = {
        [](Device& device, const void* given, Stream& s) { device.call(*static_cast<const Args*>(given), s); }...};
    kCalls[index](static_cast<Device&>(*this), args, stream);
  }
};

}  // namespace mantissa
