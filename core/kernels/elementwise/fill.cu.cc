// dst = round(value).
#include "core/cuda/device/elementwise.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa::cuda {
namespace {

template <typename T>
struct Fill {
  T* dst;
  float value;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    for (float& element : values) element = value;
    store<Width>(dst + i, values);
  }
};

}  // namespace

void run(const FillArgs& args, CudaStream& stream) {
  check_args(args);
  const Tensor& dst = args.dst;
  if (!is_floating(dst.dtype())) {  // only 0 is allowed
    set_bytes_async(dst.raw(), 0, dst.size_bytes(), stream.handle());
    return;
  }
  dispatch(dst.dtype(), [&]<typename T>() {
    const Fill<T> operation{dst.data<T>(), args.value};
    run_elementwise<kVectorWidth<T>>(operation, dst.numel(), alignment_of(operation.dst), stream);
  });
}

}  // namespace mantissa::cuda
