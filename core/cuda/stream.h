// CudaStream: a CUDA stream with the scratch memory of the kernels that run on it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/backend/attention_options.h"
#include "core/backend/gemm_options.h"
#include "core/cuda/runtime.h"
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
  // On the device `index` with these properties.
  CudaStream(int index, const DeviceProperties& device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::unique_ptr<Event> record() override;
  void wait(const Event& event) override;
  void synchronize() override;

  StreamHandle handle() const { return handle_; }
  int device_index() const { return index_; }
  // Streaming multiprocessors: what a grid is sized by.
  int multiprocessors() const { return multiprocessors_; }

  // Uninitialised device memory for the kernels of one Backend call, 256-byte aligned: the next call of workspace()
  // gives the same memory again. It grows in the first steps only; not while the stream is captured. What it has
  // outgrown stays, because a captured graph may name it.
  std::byte* workspace(size_t bytes);
  size_t workspace_bytes() const { return workspace_bytes_; }

  // Uninitialised device memory for the partial sums of matrix multiplications, 256-byte aligned, made at the first
  // call. Apart from workspace(), which may hold their operands; one per stream, because products of two streams run at
  // once.
  static constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;
  std::byte* gemm_workspace();

  const GemmOptions& gemm_options() const { return gemm_options_; }
  void set_gemm_options(const GemmOptions& options) { gemm_options_ = options; }
  AttentionChoice attention_choice() const { return attention_choice_; }
  void set_attention_choice(AttentionChoice choice) { attention_choice_ = choice; }

 private:
  int index_;
  int multiprocessors_;
  StreamHandle handle_;
  std::byte* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::vector<std::byte*> outgrown_;
  std::byte* gemm_workspace_ = nullptr;
  GemmOptions gemm_options_;
  AttentionChoice attention_choice_ = AttentionChoice::kAuto;
};

// The CudaStream that `stream` is; ContractError if it is of another backend.
CudaStream& as_cuda(Stream& stream);

}  // namespace mantissa::cuda
