// Error types and the program's documented exit codes.
//
// Exceptions report bad input and a failing environment. Programmer errors are reported by MANTISSA_CHECK (check.h).
#pragma once

#include <fmt/core.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace mantissa {

// Exit codes of the `mantissa` program; listed in docs/configuration.md.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,    // a defect of the program itself
  kConfig = 2,      // configuration or command line
  kData = 3,        // data files
  kCheckpoint = 4,  // checkpoint unreadable, damaged or of another model
  kFault = 5,       // training stopped by a numerical fault
  kComm = 6,        // a rank failed, or ranks disagree
  kHang = 7,        // the watchdog ended a job that stood still
  kMemory = 8,      // memory of the machine or of a GPU is short
  kPreempted = 75,  // stopped early by a signal or a time limit, with a checkpoint: start it again (EX_TEMPFAIL)
};

// Bad input or a failing environment, with the exit code that a program ends with.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// An Error of one exit code, to be caught by its type.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message) : Error(kCode, message) {}
  // The message by a format.
  template <typename First, typename... Rest>
  ErrorOf(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Error(kCode, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};
using ConfigError = ErrorOf<ExitCode::kConfig>;
using DataError = ErrorOf<ExitCode::kData>;
using CheckpointError = ErrorOf<ExitCode::kCheckpoint>;
using FaultError = ErrorOf<ExitCode::kFault>;
using CommError = ErrorOf<ExitCode::kComm>;
using MemoryError = ErrorOf<ExitCode::kMemory>;

// The code of an Error; kMemory where the standard library got no memory; kInternal for everything else.
inline ExitCode exit_code_of(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return error->code();
  return dynamic_cast<const std::bad_alloc*>(&exception) != nullptr ? ExitCode::kMemory : ExitCode::kInternal;
}

}  // namespace mantissa
