// The watchdog thread of NcclConnection: it finds errors and operations that do not end, and aborts the communicator.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "comm/nccl/nccl_connection.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa {

void NcclConnection::stop_watching() {
  watchdog_.request_stop();
  if (watchdog_.joinable()) watchdog_.join();
}

std::jthread NcclConnection::deadline(const char* call, const std::string& reason) const {
  const std::string message =
      fmt::format("[nccl] {}: {} has not returned after {:.1f} seconds; the process ends here. It was called for: {}",
                  who(), call, seconds(options_.abort_timeout), reason);
  return std::jthread([message, limit = options_.abort_timeout](const std::stop_token& met) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any ended;
    ended.wait_for(lock, met, limit, [] { return false; });
    if (met.stop_requested()) return;
    log_error("{}", message);
    flush_log();
    _exit(static_cast<int>(ExitCode::kComm));
  });
}

void NcclConnection::abort(Lock& lock, const std::string& reason) {
  failure_ = reason;
  launching_.reset();
  // Now: the thread that will throw it may be waiting for something else, and so may the abort.
  log_error("{}", reason);
  const bool is_watchdog = watchdog_.get_id() == std::this_thread::get_id();
  if (!has_captured_ || is_watchdog) abort_communicator(lock);
}

void NcclConnection::abort_communicator(Lock& lock) {
  const ncclComm_t comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  const std::string reason = failure_;
  lock.unlock();
  {
    const std::jthread guard = deadline("ncclCommAbort", reason);
    api_.comm_abort(comm);
  }
  lock.lock();
}

void NcclConnection::fail(Lock& lock, const std::string& reason) {
  abort(lock, reason);
  throw CommError(failure_);
}

void NcclConnection::drop_finished() {
  while (!running_.empty() && running_.front().end->done()) {
    running_.pop_front();
    last_end_ = Clock::now();
  }
}

void NcclConnection::watch(const std::stop_token& stop) {
  std::condition_variable_any interval;
  Lock lock(mutex_);
  try {
    cuda::set_device(place_.device);  // otherwise tests of events would start CUDA on GPU 0 as well
    while (interval.wait_for(lock, stop, options_.watch_interval, [] { return false; }), !stop.stop_requested()) {
      if (failure_.empty()) {
        check_progress(lock);
      } else {
        abort_communicator(lock);  // if another thread has left it to this one
      }
    }
  } catch (const std::exception& error) {
    if (failure_.empty()) abort(lock, fmt::format("[nccl] {}: {}", who(), error.what()));
  }
}

void NcclConnection::check_progress(Lock& lock) {
  drop_finished();
  const auto now = Clock::now();
  const ncclResult_t found = state();
  const bool is_launching = launching_ && found == ncclInProgress;
  const NcclOperation oldest = !running_.empty() ? running_.front().operation
                               : launching_      ? launching_->operation
                                                 : NcclOperation{.name = "between collectives"};
  if (found != ncclSuccess && found != ncclInProgress) {
    fail(lock, fmt::format("{}: {}", what(oldest), describe(found)));
  }
  if (running_.empty() && !is_launching) return;
  const auto since = std::max(last_end_, running_.empty() ? launching_->since : running_.front().since);
  if (now - since > options_.collective_timeout) {
    fail(lock, fmt::format("{}: it has not ended after {:.1f} seconds; another rank may be gone, or may have called "
                           "another collective. MANTISSA_NCCL_TIMEOUT sets the limit in seconds",
                           what(oldest), seconds(now - since)));
  }
}

}  // namespace mantissa
