// Names of kernels for tests: the call site of the launch, and the parameter types, which distinguish the kernels that
// one function template launches.
#pragma once

#include <string>

#include "core/cuda/emulation/settings.h"

namespace mantissa::cuda::emulation {

// `function` is the __PRETTY_FUNCTION__ of a template whose arguments are `Parameters`. Leaves out namespaces and
// template arguments: "core/cuda/cast.cu.cc:30 (Cast, long int)".
std::string kernel_name_from(const Site& site, const std::string& function);

template <typename... Parameters>
std::string kernel_name(const Site& site) {
  return kernel_name_from(site, __PRETTY_FUNCTION__);
}

}  // namespace mantissa::cuda::emulation
