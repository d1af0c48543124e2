// The CUDA runtime on the host. One device; device memory is host memory, NaN until it is written.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/scheduler.h"
#include "core/cuda/emulation/stream_queue.h"

namespace mantissa::cuda {
namespace {

constexpr size_t kAlignmentBytes = 256;  // as cudaMalloc's

// Ranks may be threads of one process.
std::recursive_mutex mutex;
using Lock = std::unique_lock<std::recursive_mutex>;

std::vector<StreamHandle> streams;
std::list<emulation::GraphCapture> captures;  // at most one by each thread, as in CUDA's thread-local mode
// As in CUDA, an event may be destroyed while work still refers to it: it is deleted once that work has run.
std::vector<EventHandle> destroyed_events;
std::map<void*, size_t> allocations;  // of device memory
size_t pooled_bytes = 0;              // freed to a pool, but not given back to the device yet
double device_clock_ms = 0;
std::exception_ptr failure;  // from work that failed; as on a GPU, the next wait reports it

emulation::Random& order() {
  static emulation::Random random(emulation::seed());
  static uint64_t seeded_with = emulation::seed();
  if (seeded_with != emulation::seed()) random = emulation::Random(seeded_with = emulation::seed());
  return random;
}

bool can_run(const CUstream_st& stream) {
  if (stream.items.empty()) return false;
  const CUstream_st::Item& head = stream.items.front();
  if (head.work.is_ready && !head.work.is_ready()) return false;
  return head.awaited == nullptr || head.awaited->completed >= head.turn;
}

// Keeps the error and drops all queued work.
void fail_with(std::exception_ptr error) {
  failure = std::move(error);
  for (const StreamHandle stream : streams) {
    for (const CUstream_st::Item& item : stream->items) {
      if (item.recorded != nullptr) item.recorded->completed = item.recorded->recorded;
    }
    stream->items.clear();
  }
}

// Runs the head of a stream, drawn at random from the streams that can run; returns false if no stream can. Never
// throws.
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
    if (item.work.run) item.work.run();
  } catch (...) {
    fail_with(std::current_exception());
  }
  return true;
}

void run_all() noexcept {
  while (run_something()) {
  }
}

// Whether a stream waits for something outside of this thread.
bool somebody_is_awaited() {
  return std::ranges::any_of(
      streams, [](StreamHandle stream) { return !stream->items.empty() && stream->items.front().work.is_ready; });
}

void let_others_run(Lock& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

template <typename Done>
void run_until(Lock& lock, const Done& done) {
  while (!done()) {
    if (run_something()) continue;
    MANTISSA_CHECK(somebody_is_awaited(), "[emulation] streams wait for each other's events in a circle");
    let_others_run(lock);
  }
  pooled_bytes = 0;
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

bool is_in_use(EventHandle event) {
  return std::ranges::any_of(streams, [event](StreamHandle stream) {
    return std::ranges::any_of(stream->items, [event](const CUstream_st::Item& item) {
      return item.awaited == event || item.recorded == event;
    });
  });
}

// If the calling thread captures, invalidates its capture, because `call` is not permitted during a capture, and
// returns true. CUDA's thread-local mode restricts only the thread that captures.
bool invalidates_capture(const char* call) {
  const auto found = std::ranges::find_if(captures, &emulation::GraphCapture::is_by_this_thread);
  if (found != captures.end()) found->invalidate(call);
  return found != captures.end();
}

// For a call that is not permitted during a capture by its thread.
Lock lock_for(const char* call) {
  Lock lock(mutex);
  if (invalidates_capture(call)) throw CudaError(fmt::format("[{}] not permitted while a stream is captured", call));
  return lock;
}

// The capture that the stream takes part in, or null.
emulation::GraphCapture* capture_of(StreamHandle stream) {
  const auto found =
      std::ranges::find_if(captures, [stream](const auto& capture) { return capture.takes_part(stream); });
  return found == captures.end() ? nullptr : &*found;
}

void* allocate(size_t bytes) {
  void* data = nullptr;
  const size_t room = std::max<size_t>(bytes, 1);
  if (posix_memalign(&data, kAlignmentBytes, room) != 0) throw OutOfDeviceMemory("[emulation] no host memory is left");
  // Large regions (arenas) stay untouched, so that only the used part takes memory.
  constexpr size_t kPoisonLimitBytes = size_t{64} << 20;
  if (bytes <= kPoisonLimitBytes) std::memset(data, 0xff, room);
  return data;
}

size_t free_bytes() {
  size_t held = 0;
  for (const auto& [data, bytes] : allocations) held += bytes;
  return device_properties(0).total_bytes - held - pooled_bytes;
}

void* allocate_on_device(size_t bytes) {
  if (bytes > free_bytes()) throw OutOfDeviceMemory("[emulation] no device memory is left");
  void* const data = allocate(bytes);
  allocations.emplace(data, bytes);
  return data;
}

void free_on_device(void* data) noexcept {
  allocations.erase(data);
  std::free(data);
}

}  // namespace

namespace emulation {

void enqueue(StreamHandle stream, std::function<void()> work) { enqueue(stream, StreamWork{std::move(work)}); }

void enqueue(StreamHandle stream, StreamWork work) {
  const Lock lock(mutex);
  if (GraphCapture* const capture = capture_of(stream)) return capture->add(stream, std::move(work));
  stream->items.push_back({.work = std::move(work)});
  // Now and then the device is quick and runs work at once.
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
          .max_shared_bytes_per_block = size_t{227} << 10,
          .has_memory_pools = true};
}

int driver_version() { return 0; }
int runtime_version() { return 0; }
void set_device(int device) { device_properties(device); }

// NVIDIA's profilers do not see an emulated GPU.
void send_ranges_to_profiler() {}

MemoryInfo memory_info() {
  const Lock lock(mutex);
  return {.free_bytes = free_bytes(), .total_bytes = device_properties(0).total_bytes};
}

void* allocate_device(size_t bytes) {
  const Lock lock = lock_for("allocate_device");
  return allocate_on_device(bytes);
}

void free_device(void* data) noexcept {
  const Lock lock(mutex);
  invalidates_capture("free_device");
  run_all();
  free_on_device(data);
}

PoolHandle create_pool(int) { return new CUmemPoolHandle_st; }
void destroy_pool(PoolHandle pool) noexcept { delete pool; }

void* allocate_from_pool(PoolHandle, size_t bytes, StreamHandle) {
  const Lock lock = lock_for("allocate_from_pool");
  pooled_bytes -= std::min(bytes, pooled_bytes);
  return allocate_on_device(bytes);
}

void free_to_pool(void* data, StreamHandle stream) noexcept {
  const Lock lock(mutex);
  invalidates_capture("free_to_pool");
  // A deleter, because it also runs if the work is dropped after a failure.
  const auto give_back = [](void* memory) {
    const Lock held(mutex);
    pooled_bytes += allocations.at(memory);
    free_on_device(memory);
  };
  emulation::enqueue(stream, [memory = std::shared_ptr<void>(data, give_back)] {});
}

void* allocate_pinned(size_t bytes) {
  const Lock lock = lock_for("allocate_pinned");
  return allocate(bytes);
}
void free_pinned(void* data) noexcept {
  const Lock lock(mutex);
  invalidates_capture("free_pinned");
  run_all();
  std::free(data);
}

StreamHandle create_stream() {
  const Lock lock(mutex);
  return streams.emplace_back(new CUstream_st);
}

void destroy_stream(StreamHandle stream) noexcept {
  Lock lock(mutex);
  while (!stream->items.empty() && (run_something() || somebody_is_awaited())) let_others_run(lock);
  std::erase(streams, stream);
  delete stream;
}

void synchronize(StreamHandle stream) {
  Lock lock = lock_for("synchronize");
  run_until(lock, [stream] { return stream->items.empty(); });
}

void synchronize_device() {
  Lock lock = lock_for("synchronize_device");
  run_until(lock,
            [] { return std::ranges::all_of(streams, [](StreamHandle stream) { return stream->items.empty(); }); });
}

EventHandle create_event() { return new CUevent_st; }
EventHandle create_timing_event() { return new CUevent_st{.timing = true}; }

void destroy_event(EventHandle event) noexcept {
  const Lock lock(mutex);
  for (emulation::GraphCapture& capture : captures) capture.forget(event);
  while ((event->completed < event->recorded || is_in_use(event)) && run_something()) {
  }
  std::erase_if(destroyed_events, [](EventHandle destroyed) {
    if (is_in_use(destroyed)) return false;
    delete destroyed;
    return true;
  });
  if (is_in_use(event)) {  // by a stream that stalls
    destroyed_events.push_back(event);
  } else {
    delete event;
  }
}

void record(EventHandle event, StreamHandle stream) {
  const Lock lock(mutex);
  bool is_captured = false;
  for (emulation::GraphCapture& capture : captures) is_captured |= capture.record(event, stream);
  if (is_captured) return;
  const uint64_t turn = ++event->recorded;
  stream->items.push_back({.work = {}, .recorded = event, .turn = turn});
}

void wait(StreamHandle stream, EventHandle event) {
  const Lock lock(mutex);
  if (emulation::GraphCapture* const capture = capture_of(stream))
    return static_cast<void>(capture->wait(stream, event));
  for (emulation::GraphCapture& capture : captures) {
    if (capture.wait(stream, event)) return;
  }
  stream->items.push_back({.work = {}, .awaited = event, .turn = event->recorded});
}

bool is_done(EventHandle event) {
  const Lock lock = lock_for("is_done");
  if (event->completed < event->recorded) run_something();  // time passes
  return event->completed >= event->recorded;
}

void synchronize(EventHandle event) {
  Lock lock = lock_for("synchronize");
  run_until(lock, [event] { return event->completed >= event->recorded; });
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
  return capture_of(stream) != nullptr;
}

void begin_capture(StreamHandle stream) {
  const Lock lock = lock_for("begin_capture");
  MANTISSA_CHECK(capture_of(stream) == nullptr, "[begin_capture] another thread captures the stream");
  captures.emplace_back(stream);
}

GraphHandle end_capture(StreamHandle stream) {
  const Lock lock(mutex);
  const auto found = std::ranges::find_if(captures, [stream](const emulation::GraphCapture& capture) {
    return capture.origin() == stream && capture.is_by_this_thread();
  });
  MANTISSA_CHECK(found != captures.end(), "[end_capture] this thread does not capture the stream");
  emulation::GraphCapture finished = std::move(*found);
  captures.erase(found);
  return new CUgraphExec_st{finished.finish()};
}

void launch_graph(GraphHandle graph, StreamHandle stream) {
  const Lock lock(mutex);
  for (const auto& work : graph->work) emulation::enqueue(stream, work);
}

void destroy_graph(GraphHandle graph) noexcept {
  const Lock lock(mutex);
  delete graph;
}

}  // namespace mantissa::cuda
