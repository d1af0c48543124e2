// y = r^2 and dx = dy 2 r with r = max(x, 0), in fp32 with one rounding on store. A NaN of x or dy stays one, as does
// an infinity of dy at x <= 0: inf * 0 is NaN, so an overflow does not disappear.
//
// Bound by memory: each operand is read or written once, 16 bytes at a time.
#include "core/cuda/device/elementwise.h"
#include "core/kernels/activation/args.h"

namespace mantissa::cuda {
namespace {

// Not fmaxf, which returns 0 for a NaN.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

template <typename T>
struct ReluSquaredForward {
  const T* x;
  T* y;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    load<Width>(x + i, values);
#pragma unroll
    for (float& value : values) value = relu(value) * relu(value);
    store<Width>(y + i, values);
  }
};

template <typename T>
struct ReluSquaredBackward {
  const T *x, *dy;
  T* dx;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width], gradients[Width];
    load<Width>(x + i, values);
    load<Width>(dy + i, gradients);
#pragma unroll
    for (int k = 0; k < Width; ++k) gradients[k] *= 2.0f * relu(values[k]);
    store<Width>(dx + i, gradients);
  }
};

}  // namespace

void run(const ReluSquaredForwardArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const ReluSquaredForward<T> operation{args.x.data<T>(), args.y.data<T>()};
    run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.y), stream);
  });
}

void run(const ReluSquaredBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const ReluSquaredBackward<T> operation{args.x.data<T>(), args.dy.data<T>(), args.dx.data<T>()};
    run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.dy, operation.dx),
                                     stream);
  });
}

}  // namespace mantissa::cuda
