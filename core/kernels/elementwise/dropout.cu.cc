// y = keep ? x / (1 - p) : 0, in fp32 with one rounding on store. Element e of global sample s is kept when
//   philox(seed, {e / 4, site, s, step})[e % 4] >= p * 2^32,
// a function of the global position alone. A dropped element is 0 whatever it was.
//
// Each operand is read or written once, 16 bytes at a time where a sample's elements are a multiple of that; then four
// elements share one call of Philox, else each makes its own. Rows are samples.
// Source: Philox4x32-10, Salmon et al., SC'11 (core/tensor/philox.h).
#include "core/kernels/elementwise/args.h"

#include <cmath>

#include "core/cuda/device/random_words.h"
#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

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

void run(const DropoutArgs& args, CudaStream& stream) {
  check_args(args);
  const double p = static_cast<double>(args.probability);
  // p < 1 in fp32 is at most 1 - 2^-24: the threshold fits in 32 bits.
  const uint32_t threshold = static_cast<uint32_t>(std::nearbyint(p * 0x1p32));
  const float scale = static_cast<float>(1.0 / (1.0 - p));
  dispatch(args.x.dtype(), [&]<typename X>() {
    dispatch(args.y.dtype(), [&]<typename Y>() {
      const Dropout<X, Y> operation{.x = args.x.data<X>(),
                                    .y = args.y.data<Y>(),
                                    .per_sample = args.elements_per_sample,
                                    .seed = args.seed,
                                    .step = args.step.data<int32_t>(),
                                    .site = args.site,
                                    .first_sample = args.first_sample,
                                    .threshold = threshold,
                                    .scale = scale};
      run_rowwise<kVectorWidth<X, Y>>(operation,
                                      {.rows = args.x.numel() / args.elements_per_sample,
                                       .columns = args.elements_per_sample,
                                       .alignment = alignment_of(operation.x, operation.y)},
                                      stream);
    });
  });
}

}  // namespace mantissa::cuda
