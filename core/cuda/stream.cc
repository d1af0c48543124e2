#include "core/cuda/stream.h"

#include "core/base/check.h"

namespace mantissa::cuda {

CudaEvent::CudaEvent(StreamHandle stream) : handle_(create_event()) { cuda::record(handle_, stream); }
CudaEvent::~CudaEvent() { destroy_event(handle_); }
bool CudaEvent::done() const { return is_done(handle_); }
void CudaEvent::synchronize() const { cuda::synchronize(handle_); }

CudaStream::CudaStream(int index, const DeviceProperties& device)
    : index_(index), multiprocessors_(device.multiprocessors), handle_(create_stream()) {}

CudaStream::~CudaStream() {
  for (std::byte* const block : outgrown_) free_device(block);
  if (workspace_ != nullptr) free_device(workspace_);
  if (gemm_workspace_ != nullptr) free_device(gemm_workspace_);
  destroy_stream(handle_);
}

std::unique_ptr<Event> CudaStream::record() { return std::make_unique<CudaEvent>(handle_); }

void CudaStream::wait(const Event& event) {
  const auto* ours = dynamic_cast<const CudaEvent*>(&event);
  MANTISSA_CHECK(ours != nullptr, "[cuda] a stream can wait for events of CUDA streams only");
  cuda::wait(handle_, ours->handle());
}

void CudaStream::synchronize() { cuda::synchronize(handle_); }

std::byte* CudaStream::workspace(size_t bytes) {
  if (bytes <= workspace_bytes_) return workspace_;
  constexpr size_t kGranuleBytes = size_t{1} << 20;
  const size_t wanted = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  std::byte* const larger = static_cast<std::byte*>(allocate_device(wanted));
  if (workspace_ != nullptr) outgrown_.push_back(workspace_);
  workspace_ = larger;
  workspace_bytes_ = wanted;
  return workspace_;
}

std::byte* CudaStream::gemm_workspace() {
  if (gemm_workspace_ == nullptr) gemm_workspace_ = static_cast<std::byte*>(allocate_device(kGemmWorkspaceBytes));
  return gemm_workspace_;
}

CudaStream& as_cuda(Stream& stream) {
  auto* ours = dynamic_cast<CudaStream*>(&stream);
  MANTISSA_CHECK(ours != nullptr, "[cuda] expected a stream of the CUDA backend");
  return *ours;
}

}  // namespace mantissa::cuda
