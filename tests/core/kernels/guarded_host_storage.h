// Host memory that ends at a page which may not be touched, so that one element read or written beyond it crashes the
// test, and starts behind guard bytes that are checked when it is released.
#pragma once

#include <memory>

#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa::kernel_test {

// Waits for `stream` before it is released.
std::shared_ptr<Storage> guarded_host_storage(size_t bytes, Device device, Stream& stream);

}  // namespace mantissa::kernel_test
