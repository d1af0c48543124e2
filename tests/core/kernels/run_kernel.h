// Runs kernels of the device under test, on its stream.
#pragma once

#include "core/backend/all_args.h"
#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {

template <typename Args>
void run(const Args& args) {
  device_under_test().backend().run(args, device_under_test().stream());
}

inline void fill(const Tensor& dst, float value) { run(FillArgs{.dst = dst, .value = value}); }

}  // namespace mantissa::kernel_test
