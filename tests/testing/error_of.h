// The message of the error that a call throws, to compare whole messages in tests.
#pragma once

#include <string>

#include "core/base/error.h"

namespace mantissa::testing {

// "" when nothing is thrown. Exceptions of other types than `Expected` pass through.
template <typename Expected = Error, typename F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

}  // namespace mantissa::testing
