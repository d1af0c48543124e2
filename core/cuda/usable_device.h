// Whether this program can use a GPU.
#pragma once

#include <string>
#include <string_view>

namespace mantissa::cuda {

// Whether code for `architecture` ("sm_90a", "sm_80") runs on a GPU of compute capability major.minor: the same major
// and at most its minor version; architecture-specific code ("a") on exactly that version.
bool runs_on(std::string_view architecture, int major, int minor);

// The advice for a GPU of compute capability major.minor for which this build holds no code.
std::string build_advice(int major, int minor);

// The reason that GPU number `index` cannot be used: there is no driver or no such device, or no kernel was compiled
// for its architecture. Empty if it can.
std::string unusable_reason(int index);

}  // namespace mantissa::cuda
