// The memory bandwidth that this device reaches: the ceiling of operations that only read and write.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

// Bytes/s of Backend::add on fp32 vectors, two read and one written, 12 bytes an element as STREAM counts them: a cache
// that fetches what it is about to overwrite moves a third more. 16 million elements, which no cache holds, or on a
// device that takes more than 5 ms for 1 million, these. Takes 0.2 s and 192 MiB for a moment.
double measure_memory_bandwidth(Backend& backend, Stream& stream);

}  // namespace mantissa
