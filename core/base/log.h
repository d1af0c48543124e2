// Logging through spdlog: information from rank 0 only, warnings and errors from every rank with its number.
#pragma once

#include <spdlog/spdlog.h>

namespace mantissa {

// Sets up the default spdlog logger of this process: call once the rank is known. Writes to standard error; lines of a
// job of several ranks carry "[rank r]" when they are warnings or worse.
void start_logging(int rank, int ranks);

}  // namespace mantissa
