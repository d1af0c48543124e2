// dst = round(src * scale), the product in fp32.
#include "core/cuda/device/elementwise.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa::cuda {
namespace {

template <typename From, typename To>
struct Cast {
  const From* src;
  To* dst;
  float scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    load<Width>(src + i, values);
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] *= scale;
    store<Width>(dst + i, values);
  }
};

}  // namespace

void run(const CastArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.src.dtype(), [&]<typename From>() {
    dispatch(args.dst.dtype(), [&]<typename To>() {
      const Cast<From, To> operation{args.src.data<From>(), args.dst.data<To>(), args.scale};
      run_elementwise<kVectorWidth<From, To>>(operation, args.src.numel(), alignment_of(operation.src, operation.dst),
                                              stream);
    });
  });
}

}  // namespace mantissa::cuda
