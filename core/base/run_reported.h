// The outermost call of a program: errors become lines of the log and exit codes.
#pragma once

#include <functional>

namespace mantissa {

// Runs `body` and returns the exit code: 0, or where it throws, which is logged, an Error's own or kInternal.
int run_reported(const std::function<void()>& body);

}  // namespace mantissa
