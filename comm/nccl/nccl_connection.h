// NcclApi: NCCL as a table of functions, loaded from libnccl.so.2 at run time: the program also starts without NCCL.
// Tests bring their own table. NcclConnection: an NCCL communicator, from connecting all ranks to its end.
//
// NCCL runs the operations of a communicator in the order of their issue, whatever their streams. So all streams share
// a communicator. With two, kernels in different orders on two ranks would wait for each other forever.
//
// The communicator is non-blocking: a thread of NCCL queues an operation's kernel on the stream. Until then (the
// operation is "launching") the stream's order means nothing, and no other operation may be issued.
//
// Operations may be captured in a CUDA graph. NCCL's thread then adds to the graph. Only one thread may do so at a
// time, so issue() waits until the operation is launched. watch_captured() watches each launch of the graph instead.
// ncclCommAbort waits until the graph is gone, so the thread that owns it leaves the abort to the watchdog.
//
// The watchdog thread looks for errors and for operations that do not end. It aborts the communicator. This ends the
// kernels that spin on the GPU, so threads waiting for the stream return. From then on every call throws the CommError
// with the reason. If the abort does not return in time, the process ends.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/shared_library.h"
#include "core/tensor/stream.h"

namespace mantissa {

// The functions that every library has, and their names in the table.
#define MANTISSA_NCCL_FUNCTIONS(F)                 \
  F(ncclGetVersion, get_version)                   \
  F(ncclGetUniqueId, get_unique_id)                \
  F(ncclCommInitRankConfig, comm_init_rank_config) \
  F(ncclCommFinalize, comm_finalize)               \
  F(ncclCommDestroy, comm_destroy)                 \
  F(ncclCommAbort, comm_abort)                     \
  F(ncclCommGetAsyncError, comm_get_async_error)   \
  F(ncclGetErrorString, get_error_string)          \
  F(ncclGetLastError, get_last_error)              \
  F(ncclAllGather, all_gather)                     \
  F(ncclSend, send)                                \
  F(ncclRecv, recv)                                \
  F(ncclGroupStart, group_start)                   \
  F(ncclGroupEnd, group_end)

struct NcclApi {
  MANTISSA_NCCL_FUNCTIONS(MANTISSA_DECLARE_FUNCTION)
  // ncclAlltoAll is new in 2.28: null before. It has the type of ncclAllGather, so that older headers serve as well.
  decltype(&ncclAllGather) all_to_all = nullptr;
  // ncclCommRegister and ncclCommDeregister are new in 2.19: both or neither.
  ncclResult_t (*comm_register)(ncclComm_t comm, void* buffer, size_t bytes, void** handle) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t comm, void* handle) = nullptr;
};

// ConfigError with the loader's own message if `file` cannot be opened or lacks a function: ncclCommInitRankConfig came
// with non-blocking communicators, in 2.14. The library stays loaded: it has its own threads.
NcclApi load_nccl(const std::string& file = "libnccl.so.2");

int nccl_version(const NcclApi& api);
std::string nccl_version_text(int version);  // 22809: "2.28.9"

struct NcclOptions {
  std::chrono::milliseconds start_timeout{300'000};       // for all ranks to connect
  std::chrono::milliseconds collective_timeout{600'000};  // for an operation to end, from the end of the one before
  std::chrono::milliseconds abort_timeout{30'000};        // for ncclCommAbort to return; then the process ends
  std::chrono::milliseconds watch_interval{100};
};

// For error messages.
struct NcclPlace {
  int rank = 0, size = 1;
  int device = 0;
  std::string node;
};
struct NcclOperation {
  enum class Mode : uint8_t { kQueued, kCaptured };
  const char* name = "";
  size_t bytes = 0;  // that this rank sends and receives
  Mode mode = Mode::kQueued;
};

class NcclConnection {
 public:
  // Collective; `id` is rank 0's. CommError naming rank, size, node and seconds if not all ranks connect in time.
  NcclConnection(const NcclApi& api, const ncclUniqueId& id, const NcclPlace& place, const NcclOptions& options);
  // Waits for the other ranks to end as well. Aborts instead after a failure or during an exception.
  ~NcclConnection();
  NcclConnection& operator=(NcclConnection&&) = delete;

  // Calls `call` once the previous operation is launched. Returns the operation's number.
  uint64_t issue(const NcclOperation& operation, Stream& stream, const std::function<ncclResult_t(ncclComm_t)>& call);
  // Whether the operation is launched. Does not block. Throws if the connection has failed.
  bool launched(uint64_t number);
  void wait_until_launched(uint64_t number);
  // Call it when nobody will ask for the operation any more, before its stream goes.
  void forget(uint64_t number) noexcept;
  void throw_if_failed();
  // Call it after each launch on `stream` of a graph with operations of this connection.
  void watch_captured(Stream& stream);

  // NCCL's handle for a buffer; null, with the reason in the log, if NCCL refuses it.
  void* register_buffer(void* data, size_t bytes);
  // Waits for all operations to end. No effect once NCCL frees the communicator, or during an exception.
  void deregister(const std::vector<void*>& handles) noexcept;

  // Ends the watchdog for good; errors go unnoticed from then on. Call it before the process ends without the
  // destructor: CUDA may be gone before the thread is. Waits for an abort in progress.
  void stop_watching();

 private:
  using Clock = std::chrono::steady_clock;
  struct Launching {
    NcclOperation operation;
    uint64_t number = 0;
    Clock::time_point since;
    Stream* stream = nullptr;
  };
  struct Running {
    NcclOperation operation;
    Clock::time_point since;
    std::unique_ptr<Event> end;
  };
  using Lock = std::unique_lock<std::mutex>;

  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
  std::string who() const;  // "rank 1 of 4 (GPU 1 of node a)"
  std::string what(const NcclOperation& operation) const;
  std::string describe(ncclResult_t result) const;
  void start(const ncclUniqueId& id);
  ncclResult_t state() const;  // ncclInProgress while an operation is launching
  void check_failure() const;
  [[noreturn]] void fail(Lock& lock, const std::string& reason);
  // Stores and logs the reason. Unlocks while NCCL aborts, so that other threads get the error at once.
  void abort(Lock& lock, const std::string& reason);
  void abort_communicator(Lock& lock);
  // Guards a call that nothing can interrupt. If the object outlives abort_timeout, it logs the call and ends the
  // process with ExitCode::kComm at once: exit handlers and destructors would wait for the call as well.
  std::jthread deadline(const char* call, const std::string& reason) const;
  bool is_launched(Lock& lock, uint64_t number);
  // Waits until the operation is launched.
  void settle(Lock& lock, uint64_t number);
  void drop_finished();
  void watch(const std::stop_token& stop);
  void check_progress(Lock& lock);
  bool finalize();

  const NcclApi api_;
  const NcclPlace place_;
  const NcclOptions options_;
  std::mutex mutex_;           // of all below: NCCL takes one caller at a time
  ncclComm_t comm_ = nullptr;  // null once NCCL frees it
  uint64_t issued_ = 0;
  bool has_captured_ = false;
  size_t captured_bytes_ = 0;
  std::optional<Launching> launching_;
  std::deque<Running> running_;
  Clock::time_point last_end_;
  std::string failure_;
  std::jthread watchdog_;
};

}  // namespace mantissa
