#include "core/cuda/attention.h"

#include <map>
#include <memory>
#include <mutex>

#include "core/backend/kernel_checks.h"
#include "core/cuda/attention_device.h"
#include "core/cuda/attention_own.h"

namespace mantissa::cuda {
namespace {

AttentionDevice& device_of(const CudaStream& stream) {
  // Never destroyed: when the program ends, the driver that a library talks to may be gone first.
  static auto& devices = *new std::map<int, std::unique_ptr<AttentionDevice>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<AttentionDevice>& device = devices[stream.device_index()];
  if (device == nullptr) {
    device =
        std::make_unique<AttentionDevice>([index = stream.device_index()] { return open_attention_engine(index); });
  }
  return *device;
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  const AttentionExtents extents = check_args(args);
  if (!device_of(stream).try_forward(args, extents, stream)) own_attention_forward(args, extents, stream);
}

void attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  const AttentionExtents extents = check_args(args);
  if (!device_of(stream).try_backward(args, extents, stream)) own_attention_backward(args, extents, stream);
}

}  // namespace mantissa::cuda
