#include "comm/nccl/deadline.h"

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {

Deadline::Deadline(std::chrono::milliseconds limit, const std::string& message)
    : thread_([this, limit, message] {
        std::unique_lock lock(mutex_);
        if (ended_.wait_for(lock, limit, [this] { return is_met_; })) return;
        log_error("{}", message);
        flush_log();
        _exit(static_cast<int>(ExitCode::kComm));
      }) {}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    is_met_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

}  // namespace mantissa
