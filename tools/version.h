// The text of --version.
#pragma once

#include <string>

namespace mantissa {

// "mantissa 0.1.0 (commit 1234567)".
std::string version_line();
// Version, commit, compilers, libraries, devices and transports, in several lines.
std::string version_text();

}  // namespace mantissa
