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

template <typename T>
struct RoundStochastically {
  const float* src;
  T* dst;
  float scale;
  Words random;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    load<Width>(src + i, values);
    uint32_t words[Width];
    random.draw(i, words);
    Vector<T, Width> packed;
#pragma unroll
    for (int k = 0; k < Width; ++k) packed.values[k] = round_stochastically<T>(values[k] * scale, words[k]);
    *reinterpret_cast<Vector<T, Width>*>(dst + i) = packed;
  }
};

struct RoundBlocks {
  const float* src;
  int64_t numel;
  float* numbers;  // null: codes are stored
  uint8_t* codes;
  int64_t first, row_numel;
  NarrowFormat format;
  float scale;
  Words random;
};

constexpr int kThreads = 256, kElements = 4, kSharers = static_cast<int>(kCodeBlock) / kElements;

__global__ void __launch_bounds__(kThreads) round_blocks_kernel(RoundBlocks p) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  float values[kElements] = {};
  if (i < p.numel) load<kElements>(p.src + i, values);
  uint32_t amax = 0;
#pragma unroll
  for (float& value : values) {
    value *= p.scale;
    const uint32_t bits = magnitude_bits(value);
    amax = MaxBits()(amax, is_finite_magnitude(bits) ? bits : 0);
  }
  amax = max_over_lanes(amax, kSharers);
  if (i >= p.numel) return;
  const E8M0 stored = microscale(amax, p.format.max);
  const float before = multiplier_of(stored), after = to_float(stored);
  uint32_t words[kElements];
  if (p.random.step != nullptr) p.random.draw(i, words);
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const float scaled = values[k] * before;
    values[k] =
        p.random.step != nullptr ? round_stochastically_to(p.format, scaled, words[k]) : round_to(p.format, scaled);
  }
  if (p.numbers != nullptr) {
#pragma unroll
    for (float& value : values) value *= after;
    return store<kElements>(p.numbers + i, values);
  }
  const int64_t row = (p.first + i) / p.row_numel, column = (p.first + i) - row * p.row_numel;
  uint8_t* const codes = p.codes + row * coded_row_bytes(p.row_numel);
  Vector<uint8_t, kElements> packed;
#pragma unroll
  for (int k = 0; k < kElements; ++k) packed.values[k] = code_of(p.format, values[k]);
  *reinterpret_cast<Vector<uint8_t, kElements>*>(codes + column) = packed;
  if (column % kCodeBlock == 0) codes[p.row_numel + column / kCodeBlock] = stored.code;
}

}  // namespace

void run(const RoundContributionArgs& args, CudaStream& stream) {
  check_args(args);
  const int64_t numel = args.src.numel();
  const float* const src = args.src.data<float>();
  const Words random{args.key, data_or_null<int32_t>(args.step), args.parameter};
  if (!is_coded(args.wire)) {
    const auto round_as = [&]<typename T>(T* dst) {
      run_elementwise<kVectorWidth<T>>(RoundStochastically<T>{src, dst, args.scale, random}, numel,
                                       alignment_of(src, dst), stream);
    };
    return args.wire == DType::kBF16 ? round_as(args.dst.data<BFloat16>()) : round_as(args.dst.data<Float16>());
  }
  if (numel == 0) return;
  const bool to_numbers = args.dst.dtype() == DType::kF32;
  const RoundBlocks blocks{.src = src,
                           .numel = numel,
                           .numbers = to_numbers ? args.dst.data<float>() : nullptr,
                           .codes = reinterpret_cast<uint8_t*>(args.dst.raw()),
                           .first = args.first,
                           .row_numel = to_numbers ? 0 : coded_row_numel(args.dst.dim(1)),
                           .format = narrow_format(format_of(args.wire)),
                           .scale = args.scale,
                           .random = random};
  const auto grid = static_cast<unsigned>(divide_up(numel, int64_t{kThreads} * kElements));
  launch(round_blocks_kernel, {.grid = grid, .block = kThreads}, stream.handle(), blocks);
}

}  // namespace mantissa::cuda
