// Rounds the gradient of a lane as it is sent: dst = round(src * scale), in fp32 arithmetic that is exact except for
// the requested rounding (core/quant/narrow_format.h, core/tensor/half.h). Bound by memory when it rounds to nearest:
// eight threads of a warp have the 32 elements of a block of codes in registers.
#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/random_words.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/quantize/tile_cuda.h"

namespace mantissa::cuda {
namespace {

struct Words {
  uint64_t key;
  const int32_t* step;  // null: rounds to nearest
  uint32_t parameter;

  template <int Width>
  __device__ __forceinline__ void draw(int64_t element, uint32_t (&words)[Width]) const {
    const auto number = static_cast<uint32_t>(*step);
    const auto words_of = [&](int64_t group) { return element_words(key, group, parameter, number); };
    draw_words(element, words_of, words);
  }
};

// The numbers to round: src * scale, with error feedback also the residual.
struct Input {
  const float* src;
  float scale;
  float *even, *odd;  // residuals; null without error feedback
  const int32_t* applied;
  const float* unit;

  __device__ __forceinline__ bool is_odd() const { return (*applied & 1) != 0; }

  template <int Width>
  __device__ __forceinline__ void read(int64_t i, float (&values)[Width]) const {
    load<Width>(src + i, values);
#pragma unroll
    for (float& value : values) value *= scale;
    if (even == nullptr) return;
    const float factor = *unit * scale;
    float residual[Width];
    load<Width>((is_odd() ? odd : even) + i, residual);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      values[k] += (is_finite_magnitude(magnitude_bits(residual[k])) ? residual[k] : 0.0f) * factor;
    }
  }
  // Keeps values - rounded, the values from read().
  template <int Width>
  __device__ __forceinline__ void keep(int64_t i, const float (&values)[Width], const float (&rounded)[Width]) const {
    if (even == nullptr) return;
    const float inverse = 1.0f / (*unit * scale);
    float residual[Width];
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const float left = (values[k] - rounded[k]) * inverse;
      residual[k] = is_finite_magnitude(magnitude_bits(left)) ? left : 0.0f;
    }
    store<Width>((is_odd() ? even : odd) + i, residual);
  }
};

template <typename T>
struct RoundTo {
  Input input;
  T* dst;
  Words random;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width], rounded[Width];
    input.read(i, values);
    uint32_t words[Width];
    if (random.step != nullptr) random.draw(i, words);
    Vector<T, Width> packed;
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      packed.values[k] = random.step != nullptr ? round_stochastically<T>(values[k], words[k]) : narrow<T>(values[k]);
      rounded[k] = widen(packed.values[k]);
    }
    *reinterpret_cast<Vector<T, Width>*>(dst + i) = packed;
    input.keep(i, values, rounded);
  }
};

struct RoundBlocks {
  Input input;
  int64_t numel;
  float* numbers;  // null: codes are stored
  uint8_t* codes;
  int64_t first, row_numel;
  NarrowFormat format;
  Words random;
};

constexpr int kThreads = 256, kElements = 4, kSharers = static_cast<int>(kCodeBlock) / kElements;

__global__ void __launch_bounds__(kThreads) round_blocks_kernel(RoundBlocks p) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  float values[kElements] = {};
  if (i < p.numel) p.input.read(i, values);
  uint32_t amax = 0;
#pragma unroll
  for (const float value : values) {
    const uint32_t bits = magnitude_bits(value);
    amax = MaxBits()(amax, is_finite_magnitude(bits) ? bits : 0);
  }
  amax = max_over_lanes(amax, kSharers);
  if (i >= p.numel) return;
  const E8M0 stored = microscale(amax, p.format.max);
  const float before = multiplier_of(stored), after = to_float(stored);
  uint32_t words[kElements];
  if (p.random.step != nullptr) p.random.draw(i, words);
  float rounded[kElements], numbers[kElements];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const float scaled = values[k] * before;
    rounded[k] =
        p.random.step != nullptr ? round_stochastically_to(p.format, scaled, words[k]) : round_to(p.format, scaled);
    numbers[k] = rounded[k] * after;
  }
  p.input.keep(i, values, numbers);
  if (p.numbers != nullptr) return store<kElements>(p.numbers + i, numbers);
  const int64_t row = (p.first + i) / p.row_numel, column = (p.first + i) - row * p.row_numel;
  uint8_t* const codes = p.codes + row * coded_row_bytes(p.row_numel);
  Vector<uint8_t, kElements> packed;
#pragma unroll
  for (int k = 0; k < kElements; ++k) packed.values[k] = code_of(p.format, rounded[k]);
  *reinterpret_cast<Vector<uint8_t, kElements>*>(codes + column) = packed;
  if (column % kCodeBlock == 0) codes[p.row_numel + column / kCodeBlock] = stored.code;
}

}  // namespace

void run(const RoundContributionArgs& args, CudaStream& stream) {
  check_args(args);
  const int64_t numel = args.src.numel();
  const Input input{.src = args.src.data<float>(),
                    .scale = args.scale,
                    .even = data_or_null<float>(args.residuals[0]),
                    .odd = data_or_null<float>(args.residuals[1]),
                    .applied = data_or_null<int32_t>(args.applied),
                    .unit = data_or_null<float>(args.unit)};
  const Words random{args.key, data_or_null<int32_t>(args.step), args.parameter};
  if (!is_coded(args.wire)) {
    const auto round_as = [&]<typename T>(T* dst) {
      run_elementwise<kVectorWidth<T>>(RoundTo<T>{input, dst, random}, numel,
                                       alignment_of(input.src, dst, input.even, input.odd), stream);
    };
    return args.wire == DType::kBF16 ? round_as(args.dst.data<BFloat16>()) : round_as(args.dst.data<Float16>());
  }
  if (numel == 0) return;
  const bool to_numbers = args.dst.dtype() == DType::kF32;
  const RoundBlocks blocks{.input = input,
                           .numel = numel,
                           .numbers = to_numbers ? args.dst.data<float>() : nullptr,
                           .codes = reinterpret_cast<uint8_t*>(args.dst.raw()),
                           .first = args.first,
                           .row_numel = to_numbers ? 0 : coded_row_numel(args.dst.dim(1)),
                           .format = narrow_format(format_of(args.wire)),
                           .random = random};
  const auto grid = static_cast<unsigned>(divide_up(numel, int64_t{kThreads} * kElements));
  launch(round_blocks_kernel, {.grid = grid, .block = kThreads}, stream.handle(), blocks);
}

}  // namespace mantissa::cuda
