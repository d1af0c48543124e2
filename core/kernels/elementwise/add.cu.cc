// y = round(a + b), the sum in fp32. y may be a or b.
#include "core/cuda/device/elementwise.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa::cuda {
namespace {

template <typename A, typename B, typename Y>
struct Add {
  const A* a;
  const B* b;
  Y* y;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float left[Width], right[Width];
    load<Width>(a + i, left);
    load<Width>(b + i, right);
#pragma unroll
    for (int k = 0; k < Width; ++k) left[k] += right[k];
    store<Width>(y + i, left);
  }
};

}  // namespace

void run(const AddArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.a.dtype(), [&]<typename A>() {
    dispatch(args.b.dtype(), [&]<typename B>() {
      dispatch(args.y.dtype(), [&]<typename Y>() {
        const Add<A, B, Y> operation{args.a.data<A>(), args.b.data<B>(), args.y.data<Y>()};
        run_elementwise<kVectorWidth<A, B, Y>>(operation, args.a.numel(),
                                               alignment_of(operation.a, operation.b, operation.y), stream);
      });
    });
  });
}

}  // namespace mantissa::cuda
