// dst = round(value of codes / scale), fp32 in between. Bound by memory: three bytes an element of 16 bits, sixteen
// elements at a time where addresses allow it.
#include "core/kernels/quantize/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {
namespace {

template <typename T>
struct FromCodes {
  const uint8_t* codes;
  T* dst;
  NarrowFormat format;
  const float* scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    const auto packed = *reinterpret_cast<const Vector<uint8_t, Width>*>(codes + i);
    const float divisor = *scale;
    float values[Width];
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = unscaled_value_of(format, packed.values[k], divisor);
    store<Width>(dst + i, values);
  }
};

}  // namespace

void run(const FromCodesArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.dst.dtype(), [&]<typename T>() {
    const FromCodes<T> operation{args.codes.data<uint8_t>(), args.dst.data<T>(), narrow_format(args.format),
                                 args.scale.data<float>()};
    run_elementwise<kVectorWidth<T, uint8_t>>(operation, args.dst.numel(), alignment_of(operation.codes, operation.dst),
                                           stream);
  });
}

}  // namespace mantissa::cuda
