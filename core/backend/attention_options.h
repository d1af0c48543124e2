// Who computes attention, where a device leaves a choice. Device-free.
#pragma once

#include <cstdint>

namespace mantissa {

// kOwn: our kernels. kCudnn: cuDNN's, and an error where there are none. kAuto: cuDNN's where the library has a
// kernel that gives the same bits in every run and agrees with ours at its first use, otherwise ours.
enum class AttentionChoice : uint8_t { kAuto, kOwn, kCudnn };

}  // namespace mantissa
