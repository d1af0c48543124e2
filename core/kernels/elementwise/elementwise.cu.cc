// Cast, addition, fill, split into bf16 parts and dropout, in fp32 with one rounding on store: see args.h. Bound by
// memory: each operand is read or written once, 16 bytes at a time where it is aligned.
#include "core/kernels/elementwise/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/random_words.h"

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

// A finite value rounded to bf16, clamped to the largest finite bf16 number.
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
  BFloat16 *first, *second, *third;

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
void run_split(const Split<Parts>& operation, int64_t numel, CudaStream& stream) {
  const Alignment alignment = alignment_of(operation.x, operation.first, operation.second, operation.third);
  run_elementwise<kVectorWidth<float, BFloat16>>(operation, numel, alignment, stream);
}

// Rows are samples. If a sample's elements are a multiple of four, four elements share one call of Philox4x32-10
// (Salmon et al., SC'11), else each makes its own.
template <typename X, typename Y>
struct Dropout {
  const X* x;
  Y* y;
  int64_t per_sample;
  uint64_t seed;
  const int32_t* step;
  uint32_t site, first_sample;
  uint32_t threshold;  // words below it drop their element
  float scale;

  __device__ PhiloxCounter words_of(int64_t sample, int64_t group) const {
    return philox(seed, {static_cast<uint32_t>(group), site, first_sample + static_cast<uint32_t>(sample),
                         static_cast<uint32_t>(*step)});
  }

  template <int Width>
  __device__ void apply(int64_t sample, int64_t element) const {
    const int64_t i = sample * per_sample + element;
    float values[Width];
    load<Width>(x + i, values);
    uint32_t words[Width];
    draw_words(
        element, [&](int64_t group) { return words_of(sample, group); }, words);
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = words[k] < threshold ? 0.0f : values[k] * scale;
    store<Width>(y + i, values);
  }
};

}  // namespace

void run(const CastArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.src.dtype(), args.dst.dtype(), [&]<typename From, typename To>() {
    const Cast<From, To> operation{args.src.data<From>(), args.dst.data<To>(), args.scale};
    run_elementwise<kVectorWidth<From, To>>(operation, args.src.numel(), alignment_of(operation.src, operation.dst),
                                            stream);
  });
}

void run(const AddArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.a.dtype(), args.b.dtype(), args.y.dtype(), [&]<typename A, typename B, typename Y>() {
    const Add<A, B, Y> operation{args.a.data<A>(), args.b.data<B>(), args.y.data<Y>()};
    run_elementwise<kVectorWidth<A, B, Y>>(operation, args.a.numel(),
                                           alignment_of(operation.a, operation.b, operation.y), stream);
  });
}

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

void run(const SplitArgs& args, CudaStream& stream) {
  check_args(args);
  const float* const x = args.x.data<float>();
  BFloat16* const first = args.parts[0].data<BFloat16>();
  BFloat16* const second = args.parts[1].data<BFloat16>();
  if (args.count() == 2) return run_split<2>({x, first, second, nullptr}, args.x.numel(), stream);
  run_split<3>({x, first, second, args.parts[2].data<BFloat16>()}, args.x.numel(), stream);
}

void run(const DropoutArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const Dropout<X, Y> operation{.x = args.x.data<X>(),
                                  .y = args.y.data<Y>(),
                                  .per_sample = args.elements_per_sample,
                                  .seed = args.seed,
                                  .step = args.step.data<int32_t>(),
                                  .site = args.site,
                                  .first_sample = args.first_sample,
                                  .threshold = args.threshold(),
                                  .scale = args.scale()};
    run_rowwise<kVectorWidth<X, Y>>(operation,
                                    {.rows = args.x.numel() / args.elements_per_sample,
                                     .columns = args.elements_per_sample,
                                     .alignment = alignment_of(operation.x, operation.y)},
                                    stream);
  });
}

}  // namespace mantissa::cuda
