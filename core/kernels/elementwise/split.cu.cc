// parts[i] = bf16(what the parts before leave of x), see SplitArgs. Bound by memory: x is read once.
#include "core/kernels/elementwise/args.h"

#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

// A finite value rounded to bf16, at most its largest number.
__device__ __forceinline__ float finite_bf16(float value) {
  constexpr unsigned kSign = 0x80000000u, kLargest = 0x7f7f0000u, kInfinity = 0x7f800000u;
  const unsigned rounded = float_bits(widen(narrow<BFloat16>(value)));
  return (rounded & ~kSign) == kInfinity ? float_from_bits((rounded & kSign) | kLargest) : float_from_bits(rounded);
}

__device__ __forceinline__ bool is_finite(float value) { return (float_bits(value) & 0x7f800000u) != 0x7f800000u; }

// `third` is null for two parts.
template <int Parts>
struct Split {
  const float* x;
  BFloat16* first;
  BFloat16* second;
  BFloat16* third;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width], rest[Width];
    load<Width>(x + i, values);
#pragma unroll
    for (int k = 0; k < Width; ++k) rest[k] = is_finite(values[k]) ? values[k] : 0.0f;
    take_part(rest, first + i);
    if constexpr (Parts == 3) take_part(rest, second + i);
#pragma unroll
    for (int k = 0; k < Width; ++k) rest[k] = is_finite(values[k]) ? finite_bf16(rest[k]) : values[k];
    store<Width>((Parts == 3 ? third : second) + i, rest);
  }

 private:
  // Stores the part and leaves what follows it.
  template <int Width>
  static __device__ __forceinline__ void take_part(float (&rest)[Width], BFloat16* part) {
    float rounded[Width];
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      rounded[k] = finite_bf16(rest[k]);
      rest[k] -= rounded[k];
    }
    store<Width>(part, rounded);
  }
};

template <int Parts>
void run(const Split<Parts>& operation, int64_t numel, CudaStream& stream) {
  const Alignment alignment = alignment_of(operation.x, operation.first, operation.second, operation.third);
  run_elementwise<kVectorWidth<float, BFloat16>>(operation, numel, alignment, stream);
}

}  // namespace

void run(const SplitArgs& args, CudaStream& stream) {
  check_args(args);
  const float* const x = args.x.data<float>();
  BFloat16* const first = args.parts[0].data<BFloat16>();
  BFloat16* const second = args.parts[1].data<BFloat16>();
  if (args.count() == 2) return run<2>({x, first, second, nullptr}, args.x.numel(), stream);
  run<3>({x, first, second, args.parts[2].data<BFloat16>()}, args.x.numel(), stream);
}

}  // namespace mantissa::cuda
