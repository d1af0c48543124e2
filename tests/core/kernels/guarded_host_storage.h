// Host memory before an inaccessible page, so that an access beyond its end crashes the test. Guard bytes before it
// are checked on release.
#pragma once

#include <memory>

#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa::kernel_test {

// Waits for `stream` before release.
std::shared_ptr<Storage> guarded_host_storage(size_t bytes, Device device, Stream& stream);

}  // namespace mantissa::kernel_test
