#include "core/kernels/attention/args.h"

#include <map>
#include <memory>
#include <mutex>

#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/own_cuda.h"

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

void run(const AttentionForwardArgs& args, CudaStream& stream) {
  check_args(args);
  const AttentionShape& extents = args.shape;
  if (!device_of(stream).try_forward(args, extents, stream)) own_attention_forward(args, extents, stream);
}

void run(const AttentionBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  const AttentionShape& extents = args.shape;
  if (!device_of(stream).try_backward(args, extents, stream)) own_attention_backward(args, extents, stream);
}

}  // namespace mantissa::cuda
