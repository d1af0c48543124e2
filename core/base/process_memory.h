// Memory of this process as the operating system counts it.
#pragma once

#include <cstddef>

namespace mantissa {

size_t resident_bytes();       // now
size_t peak_resident_bytes();  // largest so far

}  // namespace mantissa
