// CudaStream: a CUDA stream with the scratch memory of its kernels; graphs, timers and host copies on streams.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "core/cuda/device_memory.h"
#include "core/cuda/runtime/runtime.h"
#include "core/tensor/device_options.h"
#include "core/tensor/stream.h"

namespace mantissa::cuda {

using OwnedEvent = std::unique_ptr<std::remove_pointer_t<EventHandle>, decltype(&destroy_event)>;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(StreamHandle stream);  // records

  bool done() const override;
  void synchronize() const override;
  EventHandle handle() const { return handle_.get(); }

 private:
  OwnedEvent handle_;
};

class CudaStream final : public Stream {
 public:
  // On the device of `memory`, which has these properties. Scratch memory comes from `memory`.
  CudaStream(std::shared_ptr<DeviceMemory> memory, const DeviceProperties& device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::unique_ptr<Event> record() override;
  void wait(const Event& event) override;
  void synchronize() override;

  StreamHandle handle() const { return handle_; }
  int device_index() const { return memory_->device_index(); }
  // The number of streaming multiprocessors, which determines grid sizes.
  int multiprocessors() const { return multiprocessors_; }

  // Uninitialised device memory for the kernels of one Backend call, 256-byte aligned. The next call of workspace()
  // returns the same memory again. It grows in the first steps only, and not while the stream is captured. Outgrown
  // memory stays if a captured graph uses it. The error names `caller` if there is no memory.
  std::byte* workspace(size_t bytes, const char* caller = __builtin_FUNCTION());
  size_t workspace_bytes() const { return workspace_ == nullptr ? 0 : workspace_->bytes(); }

  // Uninitialised device memory for the partial sums of matrix multiplications, 256-byte aligned, allocated at the
  // first call. It is separate from workspace(), which may hold operands. Each stream has its own, because products of
  // two streams run at once.
  static constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;
  std::byte* gemm_workspace();

  // Uninitialised device memory for work of this stream, freed without a wait when its last tensor is destroyed.
  std::shared_ptr<Storage> allocate_scratch(size_t bytes, const std::string& what) {
    return memory_->allocate_on(handle_, bytes, what);
  }

  const GemmOptions& gemm_options() const { return gemm_options_; }
  void set_gemm_options(const GemmOptions& options) { gemm_options_ = options; }
  AttentionChoice attention_choice() const { return attention_choice_; }
  void set_attention_choice(AttentionChoice choice) { attention_choice_ = choice; }

 private:
  std::shared_ptr<DeviceMemory> memory_;
  int multiprocessors_;
  StreamHandle handle_;
  std::shared_ptr<Storage> workspace_;
  bool graph_uses_workspace_ = false;
  std::vector<std::shared_ptr<Storage>> outgrown_;
  std::shared_ptr<Storage> gemm_workspace_;
  GemmOptions gemm_options_;
  AttentionChoice attention_choice_ = AttentionChoice::kAuto;
};

// `stream` as a CudaStream. Throws ContractError if it belongs to another backend.
CudaStream& as_cuda(Stream& stream);

// Backend::capture() by a CUDA graph: work recorded once and queued as a whole, for the host time of one launch.
// `stream` must outlive the result. If `body` throws, nothing is captured and the exception propagates.
std::unique_ptr<CapturedWork> capture_graph(CudaStream& stream, const std::function<void()>& body);

// The time between two points of a stream, by the GPU's own clock. Marks are CUDA events, which do not stop the stream.
// The resolution is about half a microsecond. `stream` must outlive the result.
std::unique_ptr<StreamTimer> make_stream_timer(CudaStream& stream);

// Copies between host and device through pinned memory. upload() copies the data into pinned memory at once, so that
// the caller may reuse its own; the device copies from there when its stream reaches the copy. The host does not wait,
// and may send data ahead of the step that needs it. download() waits for the data.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void upload(const void* host, void* device, size_t bytes, CudaStream& stream);
  void download(const void* device, void* host, size_t bytes, CudaStream& stream);

 private:
  struct Slot {
    std::byte* data = nullptr;
    size_t bytes = 0;
    std::unique_ptr<CudaEvent> passed;  // null: free
  };
  Slot& free_slot(size_t bytes);
  void grow(Slot& slot, size_t bytes);

  std::vector<Slot> slots_;  // the oldest first
  size_t total_bytes_ = 0;
};

}  // namespace mantissa::cuda
