// Contract checks that stay on in every build: a broken contract throws ContractError with the given message.
//
//   MANTISSA_CHECK(w.shape() == Shape{c}, "[layer_norm] weight must have shape ({}), got {}", c, w.shape());
//
// The message names the op or function in brackets, what was expected and what came.
#pragma once

#include <fmt/core.h>

#include "core/base/error.h"

namespace mantissa {

class ContractError : public Error {
 public:
  explicit ContractError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

}  // namespace mantissa

#define MANTISSA_CHECK(condition, ...)                             \
  do {                                                             \
    if (!(condition)) [[unlikely]] {                               \
      throw ::mantissa::ContractError(::fmt::format(__VA_ARGS__)); \
    }                                                              \
  } while (false)
