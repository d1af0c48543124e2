// The CUDA runtime of the toolkit.
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <unordered_map>

#include "core/cuda/runtime/runtime.h"
#include "core/profile/range.h"

namespace mantissa::cuda {
namespace {

std::string describe(const char* call, cudaError_t status) {
  return fmt::format("[{}] CUDA error {}: {}", call, cudaGetErrorName(status), cudaGetErrorString(status));
}

// As nvidia-smi writes it. Empty for all zeros, which a driver without UUIDs gives for every GPU.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text;
  bool is_known = false;
  for (size_t index = 0; index < sizeof(uuid.bytes); ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[index]);
    text += fmt::format("{:02x}", byte);
    is_known |= byte != 0;
  }
  return is_known ? text : "";
}

// Throws CudaError naming `call` unless `status` is success; OutOfDeviceMemory for cudaErrorMemoryAllocation.
void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next launch would report again
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfDeviceMemory(describe(call, status) + "; lower train.micro_batch or model sizes, or use more ranks");
  }
  throw CudaError(describe(call, status));
}

EventHandle make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return event;
}

// ---- Ranges (core/profile/range.h) for NVIDIA's profilers

constexpr uint32_t category(RangeKind kind) { return kind == RangeKind::kPhase ? 1 : 2; }

class NvtxSink final : public RangeSink {
 public:
  explicit NvtxSink(nvtxDomainHandle_t domain) : domain_(domain) {
    nvtxDomainNameCategoryA(domain, category(RangeKind::kPhase), "phase");
    nvtxDomainNameCategoryA(domain, category(RangeKind::kOp), "op");
  }

  void begin(RangeKind kind, const char* name) override {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.category = category(kind);
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = registered(name);
    nvtxDomainRangePushEx(domain_, &attributes);
  }

  void end(RangeKind, const char*) override { nvtxDomainRangePop(domain_); }

 private:
  // A registered string is a number in each event, where another would be copied into it.
  nvtxStringHandle_t registered(const char* name) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = strings_.try_emplace(name);
    if (is_new) entry->second = nvtxDomainRegisterStringA(domain_, name);
    return entry->second;
  }

  const nvtxDomainHandle_t domain_;
  std::mutex mutex_;
  std::unordered_map<const char*, nvtxStringHandle_t> strings_;  // by address: see RangeSink::begin()
};

}  // namespace

void check_launch(int error, const void* kernel) {
  const auto status = static_cast<cudaError_t>(error);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess) name = "unknown kernel";
  throw CudaError(describe(fmt::format("launch of {}", name).c_str(), status));
}

std::string no_device_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  cudaGetLastError();
  const int driver = driver_version(), runtime = runtime_version();
  if (status == cudaErrorStubLibrary) {
    return "libcuda.so.1 is the toolkit's stub for linking, not a driver: remove its folder ('stubs') from "
           "LD_LIBRARY_PATH";
  }
  if (driver == 0) return "no NVIDIA driver is installed (libcuda.so.1 was not found)";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver supports CUDA up to {}.{}, this program was built for {}.{}", driver / 1000,
                       driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    return "the driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)";
  }
  return fmt::format("CUDA does not start: {}", cudaGetErrorString(status));
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

DeviceProperties device_properties(int device) {
  cudaDeviceProp found{};
  check_cuda(cudaGetDeviceProperties(&found, device), "cudaGetDeviceProperties");
  char bus_id[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "cudaDeviceGetPCIBusId");
  return {.name = found.name,
          .identity = {.uuid = uuid_text(found.uuid), .pci_bus_id = bus_id},
          .major = found.major,
          .minor = found.minor,
          .multiprocessors = found.multiProcessorCount,
          .total_bytes = found.totalGlobalMem,
          .l2_bytes = static_cast<size_t>(found.l2CacheSize),
          .max_shared_bytes_per_block = found.sharedMemPerBlockOptin,
          .has_memory_pools = found.memoryPoolsSupported != 0};
}

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int runtime_version() {
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

void set_device(int device) { check_cuda(cudaSetDevice(device), "cudaSetDevice"); }

MemoryInfo memory_info() {
  MemoryInfo info;
  check_cuda(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "cudaMemGetInfo");
  return info;
}

void* allocate_device(size_t bytes) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes == 0 ? 1 : bytes), "cudaMalloc");
  return data;
}

void free_device(void* data) noexcept { cudaFree(data); }

PoolHandle create_pool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  return pool;
}

void destroy_pool(PoolHandle pool) noexcept { cudaMemPoolDestroy(pool); }

void* allocate_from_pool(PoolHandle pool, size_t bytes, StreamHandle stream) {
  if (is_capturing(stream)) throw CudaError("[cudaMallocFromPoolAsync] not permitted while a stream is captured");
  void* data = nullptr;
  check_cuda(cudaMallocFromPoolAsync(&data, bytes == 0 ? 1 : bytes, pool, stream), "cudaMallocFromPoolAsync");
  return data;
}

void free_to_pool(void* data, StreamHandle stream) noexcept { cudaFreeAsync(data, stream); }

void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes == 0 ? 1 : bytes, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {  // the host's memory, not the device's
    cudaGetLastError();
    throw CudaError(fmt::format(
        "[cudaHostAlloc] the host cannot pin {:.1f} MiB of memory for copies to and from the GPU: free host "
        "memory, or raise the job's limits on memory and locked memory (ulimit -l)",
        static_cast<double>(bytes) / (1 << 20)));
  }
  check_cuda(status, "cudaHostAlloc");
  return data;
}

void free_pinned(void* data) noexcept {
  cudaDeviceSynchronize();  // cudaFreeHost does not promise to wait for copies under way
  cudaFreeHost(data);
}

StreamHandle create_stream() {
  cudaStream_t stream = nullptr;
  // Non-blocking: the legacy default stream, which other libraries may use, must not order ours.
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void destroy_stream(StreamHandle stream) noexcept { cudaStreamDestroy(stream); }
void synchronize(StreamHandle stream) { check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
void synchronize_device() { check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
EventHandle create_event() { return make_event(cudaEventDisableTiming); }
EventHandle create_timing_event() { return make_event(cudaEventDefault); }
void destroy_event(EventHandle event) noexcept { cudaEventDestroy(event); }
void record(EventHandle event, StreamHandle stream) { check_cuda(cudaEventRecord(event, stream), "cudaEventRecord"); }
void wait(StreamHandle stream, EventHandle event) {
  check_cuda(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

bool is_done(EventHandle event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "cudaEventQuery");
  return true;
}

void synchronize(EventHandle event) { check_cuda(cudaEventSynchronize(event), "cudaEventSynchronize"); }

float elapsed_ms(EventHandle begin, EventHandle end) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return milliseconds;
}

void copy_async(void* dst, const void* src, size_t bytes, CopyKind kind, StreamHandle stream) {
  constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(dst, src, bytes, kKinds[static_cast<int>(kind)], stream), "cudaMemcpyAsync");
}

void set_bytes_async(void* dst, int value, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(dst, value, bytes, stream), "cudaMemsetAsync");
}

void copy_rows_async(const RowCopy& copy, StreamHandle stream) {
  if (copy.rows == 0 || copy.row_bytes == 0) return;
  check_cuda(cudaMemcpy2DAsync(copy.dst, copy.dst_stride_bytes, copy.src, copy.src_stride_bytes, copy.row_bytes,
                               copy.rows, cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpy2DAsync");
}

bool is_capturing(StreamHandle stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void begin_capture(StreamHandle stream) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

GraphHandle end_capture(StreamHandle stream) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
  return ready;
}

void launch_graph(GraphHandle graph, StreamHandle stream) {
  check_cuda(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
}
void destroy_graph(GraphHandle graph) noexcept { cudaGraphExecDestroy(graph); }

void send_ranges_to_profiler() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The first call into NVTX loads the profiler's library, which the profiler names in the environment.
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("mantissa");
    if (domain == nullptr) return;
    static NvtxSink& sink = *new NvtxSink(domain);  // never destroyed: other threads may still be in a range at exit
    set_range_sink(&sink);
  });
}

}  // namespace mantissa::cuda
