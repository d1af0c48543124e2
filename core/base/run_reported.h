// The outermost call of a program: turns exceptions into log lines and exit codes.
#pragma once

#include <functional>

namespace mantissa {

// Runs `body` and returns the exit code, 0 on success. Logs an exception and returns the code of an Error, else
// kInternal.
int run_reported(const std::function<void()>& body);

}  // namespace mantissa
