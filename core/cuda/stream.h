// CudaStream: a CUDA stream with the scratch memory of the kernels that run on it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda/device_memory.h"
#include "core/cuda/runtime/runtime.h"
#include "core/kernels/device_options.h"
#include "core/tensor/stream.h"

namespace mantissa::cuda {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(StreamHandle stream);  // records
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override;
  void synchronize() const override;
  EventHandle handle() const { return handle_; }

 private:
  EventHandle handle_;
};

class CudaStream final : public Stream {
 public:
  // On the device of `memory`, which has these properties. Scratch memory is taken from there.
  CudaStream(std::shared_ptr<DeviceMemory> memory, const DeviceProperties& device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::unique_ptr<Event> record() override;
  void wait(const Event& event) override;
  void synchronize() override;

  StreamHandle handle() const { return handle_; }
  int device_index() const { return memory_->device_index(); }
  // Streaming multiprocessors: what a grid is sized by.
  int multiprocessors() const { return multiprocessors_; }

  // Uninitialised device memory for the kernels of one Backend call, 256-byte aligned: the next call of workspace()
  // gives the same memory again. It grows in the first steps only; not while the stream is captured. What it has
  // outgrown stays if a captured graph names it. Where there is none, `caller` is named as who wanted it.
  std::byte* workspace(size_t bytes, const char* caller = __builtin_FUNCTION());
  size_t workspace_bytes() const { return workspace_ == nullptr ? 0 : workspace_->bytes(); }

  // Uninitialised device memory for the partial sums of matrix multiplications, 256-byte aligned, made at the first
  // call. Apart from workspace(), which may hold their operands; one per stream, because products of two streams run at
  // once.
  static constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;
  std::byte* gemm_workspace();

  // Uninitialised device memory for work of this stream until the last tensor goes, which need not wait.
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
  bool graph_names_workspace_ = false;
  std::vector<std::shared_ptr<Storage>> outgrown_;
  std::shared_ptr<Storage> gemm_workspace_;
  GemmOptions gemm_options_;
  AttentionChoice attention_choice_ = AttentionChoice::kAuto;
};

// The CudaStream that `stream` is; ContractError if it is of another backend.
CudaStream& as_cuda(Stream& stream);

}  // namespace mantissa::cuda
