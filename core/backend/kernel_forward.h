// ForwardsKernels: implements every run() of a Backend by one member function template of the device or decorator,
//   template <typename Args> void call(const Args& args, Stream& stream);
// which overload resolution may refine for single kernels.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

template <typename Device, typename Base, typename... Lists>
class ForwardsKernels;

template <typename Device, typename Base>
class ForwardsKernels<Device, Base> : public Base {
 public:
  using Base::Base;
  using Base::run;
};

template <typename Device, typename Base, typename... Lists>
class ForwardsKernels<Device, Base, KernelList<>, Lists...> : public ForwardsKernels<Device, Base, Lists...> {
 public:
  using ForwardsKernels<Device, Base, Lists...>::ForwardsKernels;
  using ForwardsKernels<Device, Base, Lists...>::run;
};

template <typename Device, typename Base, typename Args, typename... Tail, typename... Lists>
class ForwardsKernels<Device, Base, KernelList<Args, Tail...>, Lists...>
    : public ForwardsKernels<Device, Base, KernelList<Tail...>, Lists...> {
  using Next = ForwardsKernels<Device, Base, KernelList<Tail...>, Lists...>;

 public:
  using Next::Next;
  using Next::run;
  void run(const Args& args, Stream& stream) override { static_cast<Device*>(this)->call(args, stream); }
};

// All kernels of the list.
template <typename Device, typename Base = Backend>
using ForwardsAllKernels =
    ForwardsKernels<Device, Base, ComputeKernels, OptimizerKernels, ReductionKernels, ProbeKernels>;

}  // namespace mantissa
