// The CUDA runtime on the host. One device; device memory is host memory, NaN until it is written.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/cuda/emulation/random.h"
#include "core/cuda/emulation/settings.h"
#include "core/cuda/emulation/stream_queue.h"

namespace mantissa::cuda {
namespace {

constexpr size_t kAlignmentBytes = 256;  // as cudaMalloc's

// Ranks may be threads of one process.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

std::vector<StreamHandle> streams;
std::optional<emulation::GraphCapture> capturing;  // one at a time
std::thread::id capturing_thread;                  // it alone is restricted, as in CUDA's thread-local mode
double device_clock_ms = 0;
std::exception_ptr failure;  // of work that failed; as on a GPU, the next one to wait hears of it

emulation::Random& order() {
  static emulation::Random random(emulation::seed());
  static uint64_t seeded_with = emulation::seed();
  if (seeded_with != emulation::seed()) random = emulation::Random(seeded_with = emulation::seed());
  return random;
}

bool can_run(const CUstream_st& stream) {
  if (stream.items.empty()) return false;
  const CUstream_st::Item& head = stream.items.front();
  return head.awaited == nullptr || head.awaited->completed >= head.turn;
}

// After a failure nothing that was queued runs any more.
void fail_with(std::exception_ptr error) {
  failure = std::move(error);
  for (const StreamHandle stream : streams) {
    for (const CUstream_st::Item& item : stream->items) {
      if (item.recorded != nullptr) item.recorded->completed = item.recorded->recorded;
    }
    stream->items.clear();
  }
}

// Runs the head of one stream, drawn among those that can go on; false if there is none. Never throws.
bool run_something() {
  std::vector<StreamHandle> able;
  for (const StreamHandle stream : streams) {
    if (can_run(*stream)) able.push_back(stream);
  }
  if (able.empty()) return false;
  StreamHandle chosen = able[order().below(able.size())];
  const CUstream_st::Item item = std::move(chosen->items.front());
  chosen->items.pop_front();
  if (item.recorded != nullptr) {
    item.recorded->completed = item.turn;
    item.recorded->completed_at_ms = device_clock_ms;
  }
  try {
    if (item.work) item.work();
  } catch (...) {
    fail_with(std::current_exception());
  }
  return true;
}

template <typename Done>
void run_until(const Done& done) {
  while (!done()) {
    MANTISSA_CHECK(run_something(), "[emulation] streams wait for each other's events in a circle");
  }
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

// Whether the call is one that a thread must not make while it captures; the capture is spoilt then.
bool spoils_capture(const char* call) {
  if (!capturing || capturing_thread != std::this_thread::get_id()) return false;
  capturing->spoil(call);
  return true;
}

void refuse_while_capturing(const char* call) {
  if (spoils_capture(call)) throw CudaError(fmt::format("[{}] not permitted while a stream is captured", call));
}

void* allocate(size_t bytes) {
  void* data = nullptr;
  const size_t room = std::max<size_t>(bytes, 1);
  if (posix_memalign(&data, kAlignmentBytes, room) != 0) throw OutOfDeviceMemory("[emulation] no host memory is left");
  // Large regions (arenas) stay untouched, so that only what is used takes memory.
  constexpr size_t kPoisonLimitBytes = size_t{64} << 20;
  if (bytes <= kPoisonLimitBytes) std::memset(data, 0xff, room);
  return data;
}

}  // namespace

namespace emulation {

void enqueue(StreamHandle stream, std::function<void()> work) {
  const Lock lock(mutex);
  if (capturing && capturing->takes_part(stream)) {
    capturing->add(stream, std::move(work));
    return;
  }
  stream->items.push_back({.work = std::move(work)});
  // Now and then the device is quick.
  if (order().below(4) == 0) run_something();
}

void take_time(double milliseconds) {
  const Lock lock(mutex);
  device_clock_ms += milliseconds;
}

}  // namespace emulation

std::string no_device_reason() { return ""; }
int device_count() { return 1; }

DeviceProperties device_properties(int device) {
  MANTISSA_CHECK(device == 0, "[emulation] there is one device, asked for number {}", device);
  return {.name = "emulated GPU",
          .identity = {.uuid = "00000000-0000-0000-0000-0000656d756c", .pci_bus_id = "0000:00:00.0"},
          .major = 9,
          .minor = 0,
          .multiprocessors = 4,
          .total_bytes = size_t{8} << 30,
          .l2_bytes = size_t{1} << 20,
          .max_shared_bytes_per_block = size_t{227} << 10};
}

int driver_version() { return 0; }
int runtime_version() { return 0; }
void set_device(int device) { device_properties(device); }
MemoryInfo memory_info() { return {.free_bytes = size_t{8} << 30, .total_bytes = size_t{8} << 30}; }

void* allocate_device(size_t bytes) {
  const Lock lock(mutex);
  refuse_while_capturing("allocate_device");
  return allocate(bytes);
}

void free_device(void* data) noexcept {
  const Lock lock(mutex);
  spoils_capture("free_device");
  while (run_something()) {
  }
  std::free(data);
}

void* allocate_pinned(size_t bytes) {
  const Lock lock(mutex);
  refuse_while_capturing("allocate_pinned");
  return allocate(bytes);
}
void free_pinned(void* data) noexcept { free_device(data); }

StreamHandle create_stream() {
  const Lock lock(mutex);
  return streams.emplace_back(new CUstream_st);
}

void destroy_stream(StreamHandle stream) noexcept {
  const Lock lock(mutex);
  while (!stream->items.empty() && run_something()) {
  }
  std::erase(streams, stream);
  delete stream;
}

void synchronize(StreamHandle stream) {
  const Lock lock(mutex);
  refuse_while_capturing("synchronize");
  run_until([stream] { return stream->items.empty(); });
}

void synchronize_device() {
  const Lock lock(mutex);
  refuse_while_capturing("synchronize_device");
  run_until([] {
    return std::all_of(streams.begin(), streams.end(), [](StreamHandle stream) { return stream->items.empty(); });
  });
}

EventHandle create_event() { return new CUevent_st; }
EventHandle create_timing_event() { return new CUevent_st{.timing = true}; }

void destroy_event(EventHandle event) noexcept {
  const Lock lock(mutex);
  if (capturing) capturing->forget(event);
  // As in CUDA, an event may be destroyed while work still refers to it: that work runs first.
  while (event->completed < event->recorded && run_something()) {
  }
  const auto refers = [event](const CUstream_st::Item& item) { return item.awaited == event; };
  const auto referred = [&] {
    return std::any_of(streams.begin(), streams.end(), [&](StreamHandle stream) {
      return std::any_of(stream->items.begin(), stream->items.end(), refers);
    });
  };
  while (referred() && run_something()) {
  }
  delete event;
}

void record(EventHandle event, StreamHandle stream) {
  const Lock lock(mutex);
  if (capturing && capturing->record(event, stream)) return;
  const uint64_t turn = ++event->recorded;
  stream->items.push_back({.work = {}, .recorded = event, .turn = turn});
}

void wait(StreamHandle stream, EventHandle event) {
  const Lock lock(mutex);
  if (capturing && capturing->wait(stream, event)) return;
  stream->items.push_back({.work = {}, .awaited = event, .turn = event->recorded});
}

bool is_done(EventHandle event) {
  const Lock lock(mutex);
  refuse_while_capturing("is_done");
  if (event->completed < event->recorded) run_something();  // time passes
  return event->completed >= event->recorded;
}

void synchronize(EventHandle event) {
  const Lock lock(mutex);
  refuse_while_capturing("synchronize");
  run_until([event] { return event->completed >= event->recorded; });
}

float elapsed_ms(EventHandle begin, EventHandle end) {
  const Lock lock(mutex);
  for (const EventHandle event : {begin, end}) {
    MANTISSA_CHECK(event->timing, "[elapsed_ms] the event was made without timing");
    MANTISSA_CHECK(event->recorded > 0 && event->completed == event->recorded,
                   "[elapsed_ms] the event was not recorded, or is not done");
  }
  return static_cast<float>(end->completed_at_ms - begin->completed_at_ms);
}

void copy_async(void* dst, const void* src, size_t bytes, CopyKind, StreamHandle stream) {
  if (bytes == 0) return;
  emulation::enqueue(stream, [=] { std::memmove(dst, src, bytes); });
}

void set_bytes_async(void* dst, int value, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  emulation::enqueue(stream, [=] { std::memset(dst, value, bytes); });
}

void copy_rows_async(const RowCopy& copy, StreamHandle stream) {
  if (copy.rows == 0 || copy.row_bytes == 0) return;
  emulation::enqueue(stream, [copy] {
    for (size_t row = 0; row < copy.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(copy.dst) + row * copy.dst_stride_bytes,
                  static_cast<const std::byte*>(copy.src) + row * copy.src_stride_bytes, copy.row_bytes);
    }
  });
}

bool is_capturing(StreamHandle stream) {
  const Lock lock(mutex);
  return capturing && capturing->takes_part(stream);
}

void begin_capture(StreamHandle stream) {
  const Lock lock(mutex);
  if (capturing) throw CudaError("[begin_capture] another capture is under way");
  capturing.emplace(stream);
  capturing_thread = std::this_thread::get_id();
}

GraphHandle end_capture(StreamHandle stream) {
  const Lock lock(mutex);
  MANTISSA_CHECK(capturing && capturing->origin() == stream, "[end_capture] the stream is not captured");
  emulation::GraphCapture finished = *std::exchange(capturing, std::nullopt);
  return new CUgraphExec_st{finished.finish()};
}

void launch_graph(GraphHandle graph, StreamHandle stream) {
  const Lock lock(mutex);
  for (const auto& work : graph->work) emulation::enqueue(stream, work);
}

void destroy_graph(GraphHandle graph) noexcept { delete graph; }

}  // namespace mantissa::cuda
