// Contract checks that stay on in every build: a broken contract throws ContractError with the given message.
//
//   MANTISSA_CHECK(w.shape() == Shape{c}, "[layer_norm] weight must have shape ({}), got {}", c, w.shape());
//
// The message names the op or function in brackets, the expected and the given value.
#pragma once

#include <fmt/core.h>

#include "core/base/error.h"

namespace mantissa {

class ContractError : public Error {
 public:
  explicit ContractError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

// For input and environment: throws E with the formatted message unless the condition holds.
template <typename E, typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(fmt::vformat(format, fmt::make_format_args(args...)));
}

// f(). An error of type From becomes a To whose text begins with where it was met: "tokens.bin: ...".
template <typename To, typename From = To, typename F>
auto with_place(const std::string& where, const F& f) {
  try {
    return f();
  } catch (const From& error) {
    throw To(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace mantissa

#define MANTISSA_CHECK(condition, ...)                             \
  do {                                                             \
    if (!(condition)) [[unlikely]] {                               \
      throw ::mantissa::ContractError(::fmt::format(__VA_ARGS__)); \
    }                                                              \
  } while (false)
