// Host memory for tensors: aligned and zeroed blocks, and reserved address space for arenas.
#pragma once

#include <memory>

#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// Zeroed and 64-byte aligned; from 2 MiB on, own pages from a huge-page boundary on: huge where the system grants them
// (a step touches hundreds of megabytes: with 4 KiB pages the address translation shows), but small at the end, so that
// a block takes less than one small page more than asked for. Throws Error naming `what` when there is no memory.
std::shared_ptr<Storage> allocate_host(size_t bytes, const char* what, Device device);

// Address space whose pages are taken, zeroed, when first touched.
std::shared_ptr<Storage> reserve_host(size_t bytes, Device device);

}  // namespace mantissa::cpu
