// The message of the error that a call throws, to compare whole messages in tests.
#pragma once

#include <string>

#include "core/base/error.h"

namespace mantissa::testing {

// "" when nothing is thrown; exceptions that are not ours pass through.
template <typename F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace mantissa::testing
