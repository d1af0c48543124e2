// Host memory for tensors: aligned, zeroed blocks, and reserved address space for arenas.
#pragma once

#include <memory>

#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// Zeroed and 64-byte aligned. Blocks of 2 MiB or more get their own pages, starting on a huge-page boundary. Pages are
// huge where the system grants them: a step touches hundreds of megabytes, and with 4 KiB pages the address translation
// takes noticeable time. The end uses small pages, so a block takes less than one small page more than requested.
// Throws ConfigError naming `what` if memory is short.
std::shared_ptr<Storage> allocate_host(size_t bytes, const char* what, Device device);

// Address space whose pages are allocated, zeroed, on first touch.
std::shared_ptr<Storage> reserve_host(size_t bytes, Device device);

}  // namespace mantissa::cpu
