#include "comm/nccl/nccl_connection.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

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

}  // namespace mantissa
