#include "comm/nccl/nccl_connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/cuda/runtime.h"

namespace mantissa {
namespace {

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Between two looks at something that another thread does: soon at first, then without taking the processor from
// others.
class Patience {
 public:
  void pause() {
    constexpr int kQuickLooks = 200;
    if (++looks_ <= kQuickLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

NcclConnection::NcclConnection(const NcclApi& api, const ncclUniqueId& id, const NcclPlace& place,
                               const NcclOptions& options)
    : api_(api), place_(place), options_(options), last_end_(Clock::now()) {
  start(id);
  watchdog_ = std::thread([this] { watch(); });
}

void NcclConnection::start(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto began = Clock::now();
  ncclResult_t result = api_.comm_init_rank_config(&comm_, place_.size, id, place_.rank, &config);
  Patience patience;
  while (result == ncclInProgress) {
    if (Clock::now() - began > options_.start_timeout) {
      fail(
          fmt::format("[nccl] {}: not all ranks were there after {:.1f} seconds. Is one of them gone, or can the nodes "
                      "not reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)?",
                      who(), seconds(Clock::now() - began)));
    }
    patience.pause();
    result = state();
  }
  if (result != ncclSuccess) {
    fail(fmt::format("[nccl] {}: NCCL does not start, after {:.1f} seconds: {}", who(), seconds(Clock::now() - began),
                     describe(result)));
  }
}

NcclConnection::~NcclConnection() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  watchdog_.join();
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() > 0 || !finish()) api_.comm_abort(comm_);
}

// False if the communicator is still there.
bool NcclConnection::finish() {
  const auto began = Clock::now();
  const auto ready = [&](ncclResult_t result) {
    Patience patience;
    while (result == ncclInProgress && Clock::now() - began < options_.collective_timeout) {
      patience.pause();
      result = state();
    }
    return result == ncclSuccess;
  };
  return ready(state()) && ready(api_.comm_finalize(comm_)) && api_.comm_destroy(comm_) == ncclSuccess;
}

std::string NcclConnection::who() const {
  return fmt::format("rank {} of {} (GPU {} of node {})", place_.rank, place_.size, place_.device, place_.node);
}

std::string NcclConnection::what(const NcclOperation& operation) const {
  return fmt::format("[{}] {}, {} bytes", operation.name, who(), operation.bytes);
}

std::string NcclConnection::describe(ncclResult_t result) const {
  const char* details = api_.get_last_error(comm_);
  return fmt::format("{}{}{}", api_.get_error_string(result), details && *details ? "; NCCL says: " : "",
                     details ? details : "");
}

ncclResult_t NcclConnection::state() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = api_.comm_get_async_error(comm_, &state);
  return result == ncclSuccess ? state : result;
}

void NcclConnection::check_failure() const {
  if (!failure_.empty()) throw CommError(failure_);
}

void NcclConnection::abort(const std::string& reason) {
  failure_ = reason;
  launching_.reset();
  if (comm_ != nullptr) api_.comm_abort(std::exchange(comm_, nullptr));
}

void NcclConnection::fail(const std::string& reason) {
  abort(reason);
  throw CommError(failure_);
}

void NcclConnection::throw_if_failed() {
  const Lock lock(mutex_);
  check_failure();
}

bool NcclConnection::is_launched(uint64_t number) {
  check_failure();
  if (!launching_ || launching_->number != number) return true;
  const ncclResult_t now = state();
  if (now == ncclInProgress) return false;
  if (now != ncclSuccess) fail(fmt::format("{}: {}", what(launching_->operation), describe(now)));
  running_.push_back({launching_->operation, launching_->since, launching_->stream->record()});
  launching_.reset();
  return true;
}

void NcclConnection::settle(Lock& lock, uint64_t number) {
  Patience patience;
  while (!is_launched(number)) {  // the watchdog ends this when it lasts too long
    lock.unlock();
    patience.pause();
    lock.lock();
  }
}

uint64_t NcclConnection::issue(const NcclOperation& operation, Stream& stream,
                               const std::function<ncclResult_t(ncclComm_t)>& call) {
  Lock lock(mutex_);
  settle(lock, issued_);
  const ncclResult_t result = call(comm_);
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(fmt::format("{}: {}", what(operation), describe(result)));
  }
  launching_ = {operation, ++issued_, Clock::now(), &stream};
  is_launched(issued_);
  return issued_;
}

bool NcclConnection::launched(uint64_t number) {
  const Lock lock(mutex_);
  return is_launched(number);
}

void NcclConnection::wait_until_launched(uint64_t number) {
  Lock lock(mutex_);
  settle(lock, number);
}

void NcclConnection::forget(uint64_t number) noexcept {
  Lock lock(mutex_);
  if (!launching_ || launching_->number != number) return;
  try {
    // NCCL still needs the stream. When an exception is on its way, the other ranks may never come.
    if (std::uncaught_exceptions() > 0) {
      abort(fmt::format("{}: given up while it was being launched", what(launching_->operation)));
    } else {
      settle(lock, number);
    }
  } catch (...) {
    // Whoever asks next is told.
  }
}

void NcclConnection::watch() {
  Lock lock(mutex_);
  try {
    cuda::set_device(place_.device);  // else asking for events would start CUDA on GPU 0 as well
    while (!stop_.wait_for(lock, options_.watch_interval, [this] { return stopping_; })) {
      if (failure_.empty()) look();
    }
  } catch (const std::exception& error) {
    if (failure_.empty()) abort(fmt::format("[nccl] {}: {}", who(), error.what()));
    // The thread that will throw it may be waiting for something else.
    spdlog::error("{}", failure_);
  }
}

void NcclConnection::look() {
  const auto now = Clock::now();
  while (!running_.empty() && running_.front().end->done()) {
    running_.pop_front();
    last_end_ = now;
  }
  const ncclResult_t found = state();
  const bool is_launching = launching_ && found == ncclInProgress;
  const NcclOperation oldest = !running_.empty() ? running_.front().operation
                               : launching_      ? launching_->operation
                                                 : NcclOperation{.name = "between collectives"};
  if (found != ncclSuccess && found != ncclInProgress) fail(fmt::format("{}: {}", what(oldest), describe(found)));
  if (running_.empty() && !is_launching) return;
  const auto since = std::max(last_end_, running_.empty() ? launching_->since : running_.front().since);
  if (now - since > options_.collective_timeout) {
    fail(
        fmt::format("{}: it has not ended after {:.1f} seconds; another rank may be gone, or may have called something "
                    "else. The longest time is set by MANTISSA_NCCL_TIMEOUT",
                    what(oldest), seconds(now - since)));
  }
}

}  // namespace mantissa
