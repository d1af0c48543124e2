#include "core/base/run_reported.h"

#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {

int run_reported(const std::function<void()>& body) {
  try {
    body();
    return static_cast<int>(ExitCode::kOk);
  } catch (const std::exception& exception) {
    log_error("{}", exception.what());
    const auto* error = dynamic_cast<const Error*>(&exception);
    return static_cast<int>(error ? error->code() : ExitCode::kInternal);
  }
}

}  // namespace mantissa
