// The part of the CUDA runtime that the backend uses, as functions that throw. Two implementations, chosen by what is
// linked: the toolkit's runtime (runtime_native.cc), and an emulation on the host (emulation/runtime_emulated.cc).
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

// The device has no memory left for a request: the configuration asks for too much. What to tell the user is up to the
// caller, who knows what asked.
class OutOfDeviceMemory : public CudaError {
 public:
  explicit OutOfDeviceMemory(const std::string& message) : CudaError(ExitCode::kConfig, message) {}
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

// Why no GPU can be used here: no driver, a driver too old, no device. Empty if there is one. Never throws.
std::string no_device_reason();
int device_count();  // 0 where no_device_reason() gives one
DeviceProperties device_properties(int device);
int driver_version();   // 13000 for 13.0
int runtime_version();  // likewise
// Of the calling thread; all calls below refer to it.
void set_device(int device);
MemoryInfo memory_info();

// For what lives as long as the run. Memory of this kind can be registered with NCCL, that of a pool cannot.
void* allocate_device(size_t bytes);
// Waits for all work of the device, as cudaFree does.
void free_device(void* data) noexcept;
// For what comes and goes: a pool's memory is taken and given back in the order of a stream, without a wait. What is
// free goes back to the device when a stream is waited for.
PoolHandle create_pool(int device);
void destroy_pool(PoolHandle pool) noexcept;
// For work that `stream` is given from now on. CudaError while the stream is captured: the memory would be the graph's.
void* allocate_from_pool(PoolHandle pool, size_t bytes, StreamHandle stream);
// What `stream` was given before may still use it. Not while the stream is captured: each launch would free it.
void free_to_pool(void* data, StreamHandle stream) noexcept;
// Host memory that asynchronous copies read and write directly. CudaError, not OutOfDeviceMemory, if there is none.
void* allocate_pinned(size_t bytes);
// Waits for all work of the device: a copy may be under way, also while an exception is.
void free_pinned(void* data) noexcept;

StreamHandle create_stream();
void destroy_stream(StreamHandle stream) noexcept;
void synchronize(StreamHandle stream);
// Waits for the work of all streams of the device.
void synchronize_device();

EventHandle create_event();
EventHandle create_timing_event();  // one that elapsed_ms() takes
void destroy_event(EventHandle event) noexcept;
void record(EventHandle event, StreamHandle stream);
void wait(StreamHandle stream, EventHandle event);
bool is_done(EventHandle event);
void synchronize(EventHandle event);
// From one timing event to another; both must be done.
float elapsed_ms(EventHandle begin, EventHandle end);

// Host memory must be pinned and must stay as it is until the stream has passed the copy.
void copy_async(void* dst, const void* src, size_t bytes, CopyKind kind, StreamHandle stream);
void set_bytes_async(void* dst, int value, size_t bytes, StreamHandle stream);
// Rows of device memory to rows at another distance from each other.
struct RowCopy {
  void* dst = nullptr;
  size_t dst_stride_bytes = 0;
  const void* src = nullptr;
  size_t src_stride_bytes = 0;
  size_t row_bytes = 0, rows = 0;
};
void copy_rows_async(const RowCopy& copy, StreamHandle stream);

// Work that is given to `stream`, and to streams that wait for its events, is recorded instead of run.
void begin_capture(StreamHandle stream);
// Whether work for `stream` is recorded at present.
bool is_capturing(StreamHandle stream);
// What was recorded, ready to be launched again and again. Streams that took part must have been joined to `stream`.
GraphHandle end_capture(StreamHandle stream);
void launch_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(GraphHandle graph) noexcept;

}  // namespace mantissa::cuda
