#include "core/cuda/stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/round_up.h"

namespace mantissa::cuda {
namespace {

class Graph final : public CapturedWork {
 public:
  Graph(CudaStream& stream, GraphHandle handle) : stream_(stream), handle_(handle, destroy_graph) {}

  void launch() override { launch_graph(handle_.get(), stream_.handle()); }

 private:
  CudaStream& stream_;
  std::unique_ptr<std::remove_pointer_t<GraphHandle>, decltype(&destroy_graph)> handle_;
};

// A capture must be ended, or the stream cannot be used any more.
void abandon_capture(CudaStream& stream) noexcept {
  try {
    destroy_graph(end_capture(stream.handle()));
  } catch (const CudaError&) {  // the failure of `body` has invalidated the capture
  }
}

class EventTimer final : public StreamTimer {
 public:
  explicit EventTimer(CudaStream& stream) : stream_(stream) {}

  size_t mark() override {
    events_.emplace_back(create_timing_event(), destroy_event);
    record(events_.back().get(), stream_.handle());
    return events_.size() - 1;
  }

  double milliseconds(size_t from, size_t to) override {
    MANTISSA_CHECK(from < events_.size() && to < events_.size(), "[stream_timer] marks {} and {} must be among {}",
                   from, to, events_.size());
    synchronize(events_[from].get());
    synchronize(events_[to].get());
    return elapsed_ms(events_[from].get(), events_[to].get());
  }

 private:
  CudaStream& stream_;
  std::vector<OwnedEvent> events_;
};

// Large uploads, such as initial weights, go in pieces.
constexpr size_t kPieceBytes = size_t{4} << 20;
// Limits how far the host may be ahead: the input of several steps, so that it does not wait inside a step.
constexpr size_t kMostBytes = size_t{64} << 20;

}  // namespace

CudaEvent::CudaEvent(StreamHandle stream) : handle_(create_event(), destroy_event) { cuda::record(handle(), stream); }
bool CudaEvent::done() const { return is_done(handle()); }
void CudaEvent::synchronize() const { cuda::synchronize(handle()); }

CudaStream::CudaStream(std::shared_ptr<DeviceMemory> memory, const DeviceProperties& device)
    : memory_(std::move(memory)), multiprocessors_(device.multiprocessors), handle_(create_stream()) {}

CudaStream::~CudaStream() {
  outgrown_.clear();
  workspace_.reset();
  gemm_workspace_.reset();
  destroy_stream(handle_);  // last: memory is freed in its order
}

std::unique_ptr<Event> CudaStream::record() { return std::make_unique<CudaEvent>(handle_); }

void CudaStream::wait(const Event& event) {
  const auto* ours = dynamic_cast<const CudaEvent*>(&event);
  MANTISSA_CHECK(ours != nullptr, "[cuda] a stream can wait for events of CUDA streams only");
  cuda::wait(handle_, ours->handle());
}

void CudaStream::synchronize() { cuda::synchronize(handle_); }

std::byte* CudaStream::workspace(size_t bytes, const char* caller) {
  if (bytes > workspace_bytes()) {
    constexpr size_t kGranuleBytes = size_t{1} << 20;
    const size_t wanted = round_up(bytes, kGranuleBytes);
    if (graph_uses_workspace_) outgrown_.push_back(workspace_);
    graph_uses_workspace_ = false;
    workspace_.reset();  // first: the new workspace may take its place
    workspace_ = allocate_scratch(wanted, fmt::format("workspace of {}", caller));
  }
  graph_uses_workspace_ = graph_uses_workspace_ || is_capturing(handle_);
  return workspace_ == nullptr ? nullptr : workspace_->data();
}

std::byte* CudaStream::gemm_workspace() {
  if (gemm_workspace_ == nullptr) gemm_workspace_ = allocate_scratch(kGemmWorkspaceBytes, "GEMM workspace");
  return gemm_workspace_->data();
}

CudaStream& as_cuda(Stream& stream) {
  auto* ours = dynamic_cast<CudaStream*>(&stream);
  MANTISSA_CHECK(ours != nullptr, "[cuda] expected a stream of the CUDA backend");
  return *ours;
}

std::unique_ptr<CapturedWork> capture_graph(CudaStream& stream, const std::function<void()>& body) {
  begin_capture(stream.handle());
  try {
    body();
  } catch (...) {
    abandon_capture(stream);
    throw;
  }
  return std::make_unique<Graph>(stream, end_capture(stream.handle()));
}

std::unique_ptr<StreamTimer> make_stream_timer(CudaStream& stream) { return std::make_unique<EventTimer>(stream); }

Staging::~Staging() {
  for (const Slot& slot : slots_) free_pinned(slot.data);
}

Staging::Slot& Staging::free_slot(size_t bytes) {
  const auto is_free = [](const Slot& slot) { return slot.passed == nullptr || slot.passed->done(); };
  const auto fits = [&](const Slot& slot) { return slot.bytes >= bytes && is_free(slot); };
  auto found = std::find_if(slots_.begin(), slots_.end(), fits);
  if (found == slots_.end() && total_bytes_ + bytes <= kMostBytes) {
    slots_.emplace_back();
    found = std::prev(slots_.end());
  }
  if (found == slots_.end()) found = std::find_if(slots_.begin(), slots_.end(), is_free);
  if (found == slots_.end()) {
    std::rotate(slots_.begin(), std::next(slots_.begin()), slots_.end());  // waits for the oldest, which goes last
    found = std::prev(slots_.end());
    found->passed->synchronize();
  }
  found->passed.reset();
  if (found->bytes < bytes) grow(*found, bytes);
  return *found;
}

void Staging::grow(Slot& slot, size_t bytes) {
  if (slot.data != nullptr) free_pinned(slot.data);
  slot.data = nullptr;
  total_bytes_ -= std::exchange(slot.bytes, 0);
  slot.data = static_cast<std::byte*>(allocate_pinned(bytes));
  slot.bytes = bytes;
  total_bytes_ += bytes;
}

void Staging::upload(const void* host, void* device, size_t bytes, CudaStream& stream) {
  // A repetition would send the later content of the slot.
  MANTISSA_CHECK(!is_capturing(stream.handle()), "[staging] an upload cannot be captured");
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - begin);
    Slot& slot = free_slot(count);
    std::memcpy(slot.data, static_cast<const std::byte*>(host) + begin, count);
    copy_async(static_cast<std::byte*>(device) + begin, slot.data, count, CopyKind::kHostToDevice, stream.handle());
    slot.passed = std::make_unique<CudaEvent>(stream.handle());
  }
}

void Staging::download(const void* device, void* host, size_t bytes, CudaStream& stream) {
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - begin);
    Slot& slot = free_slot(count);
    copy_async(slot.data, static_cast<const std::byte*>(device) + begin, count, CopyKind::kDeviceToHost,
               stream.handle());
    stream.synchronize();
    std::memcpy(static_cast<std::byte*>(host) + begin, slot.data, count);
  }
}

}  // namespace mantissa::cuda
