#include "core/cuda/stream.h"

#include <fmt/core.h>

#include <utility>

#include "core/base/check.h"
#include "core/base/round_up.h"

namespace mantissa::cuda {

CudaEvent::CudaEvent(StreamHandle stream) : handle_(create_event()) { cuda::record(handle_, stream); }
CudaEvent::~CudaEvent() { destroy_event(handle_); }
bool CudaEvent::done() const { return is_done(handle_); }
void CudaEvent::synchronize() const { cuda::synchronize(handle_); }

CudaStream::CudaStream(std::shared_ptr<DeviceMemory> memory, const DeviceProperties& device)
    : memory_(std::move(memory)), multiprocessors_(device.multiprocessors), handle_(create_stream()) {}

CudaStream::~CudaStream() {
  outgrown_.clear();
  workspace_.reset();
  gemm_workspace_.reset();
  destroy_stream(handle_);  // last: memory goes back in its order
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
    if (graph_names_workspace_) outgrown_.push_back(workspace_);
    graph_names_workspace_ = false;
    workspace_.reset();  // before its successor comes, which may take its place
    workspace_ = allocate_scratch(wanted, fmt::format("workspace of {}", caller));
  }
  graph_names_workspace_ = graph_names_workspace_ || is_capturing(handle_);
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

}  // namespace mantissa::cuda
