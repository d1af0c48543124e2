// The backend's part of the CUDA runtime, as functions that throw. A program links one of two implementations: the
// toolkit's runtime (runtime_native.cc), or an emulation on the host (emulation/runtime_emulated.cc).
//
// Every failing call throws CudaError with the call's name and CUDA's own message.
#pragma once

#include <cstddef>
#include <string>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;
struct CUmemPoolHandle_st;

namespace mantissa::cuda {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using GraphHandle = CUgraphExec_st*;
using PoolHandle = CUmemPoolHandle_st*;

class CudaError : public Error {
 public:
  explicit CudaError(const std::string& message) : CudaError(ExitCode::kInternal, message) {}

 protected:
  CudaError(ExitCode code, const std::string& message) : Error(code, message) {}
};

// The device has no memory left for a request. The caller knows the purpose of the
// request and adds it to the message.
class OutOfDeviceMemory : public CudaError {
 public:
  explicit OutOfDeviceMemory(const std::string& message) : CudaError(ExitCode::kMemory, message) {}
};

struct DeviceProperties {
  std::string name;  // "NVIDIA H200"
  DeviceIdentity identity;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  size_t total_bytes = 0, l2_bytes = 0;
  size_t max_shared_bytes_per_block = 0;  // after opting in
  bool has_memory_pools = false;
};

struct MemoryInfo {
  size_t free_bytes = 0, total_bytes = 0;
};

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// The reason that no GPU can be used: no driver, an old driver, or no device. Empty if there is one. Never throws.
std::string no_device_reason();
int device_count();  // 0 if there is a no_device_reason()
DeviceProperties device_properties(int device);
// CUDA versions; 13000 for 13.0.
int driver_version();
int runtime_version();
// Sets the calling thread's device, to which all calls below refer.
void set_device(int device);
MemoryInfo memory_info();

// Memory for the life of the run. Unlike memory of a pool, it can be registered with NCCL.
void* allocate_device(size_t bytes);
// Waits for all work of the device, as cudaFree does.
void free_device(void* data) noexcept;
// A pool for short-lived memory, which is allocated and freed in the order of a stream, without a wait. Free memory
// goes back to the device when the host waits for a stream.
PoolHandle create_pool(int device);
void destroy_pool(PoolHandle pool) noexcept;
// For work that is queued on `stream` later. Throws CudaError while the stream is captured, because the memory would
// belong to the graph.
void* allocate_from_pool(PoolHandle pool, size_t bytes, StreamHandle stream);
// Work that was queued on `stream` before may still use the memory. Not while the stream is captured, because each
// launch would free it.
void free_to_pool(void* data, StreamHandle stream) noexcept;
// Host memory that asynchronous copies read and write directly. Throws CudaError, not OutOfDeviceMemory, if there is
// none.
void* allocate_pinned(size_t bytes);
// Waits for all work of the device, because a copy may be running, also during an exception.
void free_pinned(void* data) noexcept;

StreamHandle create_stream();
void destroy_stream(StreamHandle stream) noexcept;
void synchronize(StreamHandle stream);
// Waits for the work of all streams of the device.
void synchronize_device();

EventHandle create_event();
EventHandle create_timing_event();  // for elapsed_ms()
void destroy_event(EventHandle event) noexcept;
void record(EventHandle event, StreamHandle stream);
void wait(StreamHandle stream, EventHandle event);
bool is_done(EventHandle event);
void synchronize(EventHandle event);
// The time between two timing events; both must be done.
float elapsed_ms(EventHandle begin, EventHandle end);

// Host memory must be pinned and must not change until the stream has passed the copy.
void copy_async(void* dst, const void* src, size_t bytes, CopyKind kind, StreamHandle stream);
void set_bytes_async(void* dst, int value, size_t bytes, StreamHandle stream);
// A copy of rows in device memory to rows with another stride.
struct RowCopy {
  void* dst = nullptr;
  size_t dst_stride_bytes = 0;
  const void* src = nullptr;
  size_t src_stride_bytes = 0;
  size_t row_bytes = 0, rows = 0;
};
void copy_rows_async(const RowCopy& copy, StreamHandle stream);

// Records work queued on `stream`, and on streams that wait for its events, instead of running it.
void begin_capture(StreamHandle stream);
// Whether work for `stream` is recorded at present.
bool is_capturing(StreamHandle stream);
// Returns the recorded work, ready for repeated launches. Streams that took part must have been joined to `stream`.
GraphHandle end_capture(StreamHandle stream);
void launch_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(GraphHandle graph) noexcept;

// For launch() on a GPU: throws CudaError naming the kernel unless `error`, a cudaError_t, is success.
void check_launch(int error, const void* kernel);

// Sends all ranges (core/profile/range.h) to the profiler that has started the program, if any: through NVTX, in a
// domain "mantissa", with the kinds of ranges as categories. Without a profiler, ranges cost nothing. Only the first
// call counts. Work that a CUDA graph repeats has no ranges, because the host does not execute it again.
void send_ranges_to_profiler();

}  // namespace mantissa::cuda
