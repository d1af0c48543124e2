#include "comm/nccl/nccl_connection.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa {
namespace {

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Pauses between two tests of another thread's progress: short at first, then longer to leave the processor to others.
class Backoff {
 public:
  void pause() {
    constexpr int kQuickTests = 200;
    if (++tests_ <= kQuickTests) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  int tests_ = 0;
};

}  // namespace

NcclApi load_nccl(const std::string& file) {
  const cuda::SharedLibrary library(file, {"NCCL_HOME", "CUDA_HOME", "CUDA_PATH"},
                                    "install NCCL 2.14 or newer, or add its folder to LD_LIBRARY_PATH; "
                                    "comm.backend=mpi works without it");
  NcclApi table;
  MANTISSA_NCCL_FUNCTIONS(MANTISSA_FIND_FUNCTION)
  library.find("ncclAlltoAll", table.all_to_all);
  library.find("ncclCommDeregister", table.comm_deregister);
  if (table.comm_deregister != nullptr) library.find("ncclCommRegister", table.comm_register);
  return table;
}

int nccl_version(const NcclApi& api) {
  int version = 0;
  return api.get_version(&version) == ncclSuccess ? version : 0;
}

std::string nccl_version_text(int version) {
  const int major_unit = version < 10000 ? 1000 : 10000;  // the encoding changed after 2.8
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

NcclConnection::NcclConnection(const NcclApi& api, const ncclUniqueId& id, const NcclPlace& place,
                               const NcclOptions& options)
    : api_(api), place_(place), options_(options), last_end_(Clock::now()) {
  start(id);
  const Lock lock(mutex_);  // until watchdog_ is set: abort() compares thread ids
  watchdog_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void NcclConnection::start(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Lock lock(mutex_);
  const auto began = Clock::now();
  ncclResult_t result = api_.comm_init_rank_config(&comm_, place_.size, id, place_.rank, &config);
  Backoff backoff;
  while (result == ncclInProgress) {
    if (Clock::now() - began > options_.start_timeout) {
      fail(lock, fmt::format(
                     "[nccl] {}: not all ranks were there after {:.1f} seconds. Is one of them gone, or can the nodes "
                     "not reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)?",
                     who(), seconds(Clock::now() - began)));
    }
    backoff.pause();
    result = state();
  }
  if (result != ncclSuccess) {
    fail(lock, fmt::format("[nccl] {}: NCCL does not start, after {:.1f} seconds: {}", who(),
                           seconds(Clock::now() - began), describe(result)));
  }
}

NcclConnection::~NcclConnection() {
  stop_watching();
  if (comm_ == nullptr) return;
  if (!failure_.empty() || std::uncaught_exceptions() > 0 || !finalize()) {
    Lock lock(mutex_);
    if (failure_.empty()) failure_ = fmt::format("[nccl] {}: given up before all ranks were done", who());
    abort_communicator(lock);
    return;
  }
  // NCCL may have freed it even if it reports an error: nothing may use it any more.
  const std::jthread guard = deadline("ncclCommDestroy", "the end of the program");
  const ncclResult_t result = api_.comm_destroy(std::exchange(comm_, nullptr));
  if (result != ncclSuccess) {
    log_warn("[nccl] {}: NCCL did not shut down cleanly: {}", who(), api_.get_error_string(result));
  }
}

void NcclConnection::stop_watching() {
  watchdog_.request_stop();
  if (watchdog_.joinable()) watchdog_.join();
}

// False if not all ranks have reached the end.
bool NcclConnection::finalize() {
  const auto began = Clock::now();
  const auto ready = [&](ncclResult_t result) {
    Backoff backoff;
    while (result == ncclInProgress && Clock::now() - began < options_.collective_timeout) {
      backoff.pause();
      result = state();
    }
    return result == ncclSuccess;
  };
  return ready(state()) && ready(api_.comm_finalize(comm_));
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

void NcclConnection::throw_if_failed() {
  const Lock lock(mutex_);
  check_failure();
}

bool NcclConnection::is_launched(Lock& lock, uint64_t number) {
  check_failure();
  if (!launching_ || launching_->number != number) return true;
  const ncclResult_t now = state();
  if (now == ncclInProgress) return false;
  if (now != ncclSuccess) fail(lock, fmt::format("{}: {}", what(launching_->operation), describe(now)));
  if (launching_->operation.mode == NcclOperation::Mode::kCaptured) {
    captured_bytes_ += launching_->operation.bytes;
    launching_.reset();
    return true;
  }
  // First: from here on the stream may go at any time, whatever happens below.
  const Launching done = *std::exchange(launching_, std::nullopt);
  std::unique_ptr<Event> end;
  try {
    end = done.stream->record();
  } catch (const std::exception& error) {
    fail(lock, fmt::format("{}: its end cannot be watched: {}", what(done.operation), error.what()));
  }
  running_.push_back({done.operation, done.since, std::move(end)});
  return true;
}

void NcclConnection::settle(Lock& lock, uint64_t number) {
  Backoff backoff;
  while (!is_launched(lock, number)) {  // the watchdog ends this if it lasts too long
    lock.unlock();
    backoff.pause();
    lock.lock();
  }
}

uint64_t NcclConnection::issue(const NcclOperation& operation, Stream& stream,
                               const std::function<ncclResult_t(ncclComm_t)>& call) {
  Lock lock(mutex_);
  settle(lock, issued_);
  has_captured_ |= operation.mode == NcclOperation::Mode::kCaptured;
  const ncclResult_t result = call(comm_);
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(lock, fmt::format("{}: {}", what(operation), describe(result)));
  }
  launching_ = {operation, ++issued_, Clock::now(), &stream};
  if (operation.mode == NcclOperation::Mode::kCaptured) {
    settle(lock, issued_);
  } else {
    is_launched(lock, issued_);
  }
  return issued_;
}

bool NcclConnection::launched(uint64_t number) {
  Lock lock(mutex_);
  return is_launched(lock, number);
}

void NcclConnection::wait_until_launched(uint64_t number) {
  Lock lock(mutex_);
  settle(lock, number);
}

void NcclConnection::forget(uint64_t number) noexcept {
  Lock lock(mutex_);
  if (!launching_ || launching_->number != number) return;
  try {
    // NCCL still needs the stream. During an exception, the other ranks may never come.
    if (std::uncaught_exceptions() > 0) {
      abort(lock, fmt::format("{}: given up while it was being launched", what(launching_->operation)));
    } else {
      settle(lock, number);
    }
  } catch (...) {
    // The next call throws it.
  }
}

void NcclConnection::watch_captured(Stream& stream) {
  const Lock lock(mutex_);
  check_failure();
  running_.push_back({{"captured step", captured_bytes_}, Clock::now(), stream.record()});
}

void* NcclConnection::register_buffer(void* data, size_t bytes) {
  Lock lock(mutex_);
  settle(lock, issued_);
  void* handle = nullptr;
  const ncclResult_t result = api_.comm_register(comm_, data, bytes, &handle);
  if (result == ncclSuccess) return handle;  // null if NCCL_LOCAL_REGISTER=0 forbids it
  log_warn("[nccl] {}: a buffer of {} bytes is not registered: {}", who(), bytes, describe(result));
  return nullptr;
}

void NcclConnection::deregister(const std::vector<void*>& handles) noexcept {
  if (std::uncaught_exceptions() > 0) return;
  Lock lock(mutex_);
  try {
    settle(lock, issued_);
    Backoff backoff;
    const auto is_watched = [this] { return comm_ != nullptr && !watchdog_.get_stop_token().stop_requested(); };
    for (drop_finished(); !running_.empty() && is_watched(); drop_finished()) {  // the watchdog ends this if it lasts
      lock.unlock();
      backoff.pause();
      lock.lock();
    }
    if (comm_ == nullptr || !running_.empty()) return;
    for (void* const handle : handles) {
      const ncclResult_t result = api_.comm_deregister(comm_, handle);
      if (result != ncclSuccess) log_warn("[nccl] {}: a buffer stays registered: {}", who(), describe(result));
    }
  } catch (const std::exception&) {
    // The connection has failed, or CUDA has: the next call throws it.
  }
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
