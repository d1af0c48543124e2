// AdamW with decoupled weight decay, one pass in fp32 that also writes the low-precision weight:
//   g = gradient multiplier;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr decay w;  w -= lr (m / c1) / (sqrt(v / c2) + epsilon);  weight = round(w)
// A bf16 m is rounded when stored; the update itself uses the unrounded one. Fused multiply-adds are spelled out where
// the CPU kernel has them, so that neither compiler nor vector width decides about the bits.
//
// What drives the update is read from device memory: a verdict that was reached there predicates it, and the host does
// not wait. Bound by memory: 28 bytes an element with fp32 moments, and those of the weight.
// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019.
#include "core/cuda/adamw.h"

#include <cmath>

#include "core/backend/kernel_checks.h"
#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

template <typename M, typename W>
struct AdamW {
  const float* gradient;
  float* master;
  M* m;
  float* v;
  W* weight;  // null when there is none
  const UpdateControl* control;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;
};

// The factors of one update.
struct Factors {
  float multiplier, decay, step, inverse_correction2;
};

template <int Width, typename M, typename W>
__device__ __forceinline__ void update(const AdamW<M, W>& a, const Factors& factors, int64_t i) {
  float g[Width], w[Width], m[Width], v[Width];
  load<Width>(a.gradient + i, g);
  load<Width>(a.master + i, w);
  load<Width>(a.m + i, m);
  load<Width>(a.v + i, v);
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    g[k] *= factors.multiplier;
    m[k] = fmaf(a.beta1, m[k], a.one_minus_beta1 * g[k]);
    v[k] = fmaf(a.beta2, v[k], a.one_minus_beta2 * (g[k] * g[k]));
    const float decayed = fmaf(-factors.decay, w[k], w[k]);
    const float root = sqrtf(v[k] * factors.inverse_correction2);
    w[k] = decayed - factors.step * m[k] / (root + a.epsilon);
  }
  store<Width>(a.m + i, m);
  store<Width>(a.v + i, v);
  store<Width>(a.master + i, w);
  if (a.weight != nullptr) store<Width>(a.weight + i, w);
}

template <int Width, typename M, typename W>
__global__ void adamw_kernel(AdamW<M, W> a, int64_t numel) {
  const UpdateControl control = *a.control;
  if (control.apply == 0) return;
  const Factors factors{.multiplier = control.gradient_multiplier,
                        .decay = control.learning_rate * a.weight_decay,
                        .step = control.learning_rate / control.bias_correction1,
                        .inverse_correction2 = 1.0f / control.bias_correction2};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t whole = numel / Width;
  for (int64_t i = thread; i < whole; i += threads) update<Width>(a, factors, i * Width);
  for (int64_t i = whole * Width + thread; i < numel; i += threads) update<1>(a, factors, i);
}

template <typename M, typename W>
void run(const AdamW<M, W>& a, int64_t numel, CudaStream& stream) {
  constexpr int kWidth = kVectorWidth<float, M, W>;
  constexpr unsigned kThreads = 256;
  if (numel == 0) return;
  const bool vectors = all_aligned(a.gradient, a.master, a.m, a.v, a.weight);
  const LaunchShape shape{.grid = blocks_for(numel, int64_t{kThreads} * (vectors ? kWidth : 1), stream),
                          .block = kThreads};
  launch(vectors ? adamw_kernel<kWidth, M, W> : adamw_kernel<1, M, W>, shape, stream.handle(), a, numel);
}

}  // namespace

void adamw(const AdamWArgs& args, CudaStream& stream) {
  check_args(args);
  const bool has_weight = args.weight.defined();
  const auto with_types = [&]<typename M, typename W>() {
    run(AdamW<M, W>{.gradient = args.gradient.data<float>(),
                    .master = args.master.data<float>(),
                    .m = args.m.data<M>(),
                    .v = args.v.data<float>(),
                    .weight = has_weight ? args.weight.data<W>() : nullptr,
                    .control = reinterpret_cast<const UpdateControl*>(args.control.raw()),
                    .beta1 = args.beta1,
                    .one_minus_beta1 = 1.0f - args.beta1,
                    .beta2 = args.beta2,
                    .one_minus_beta2 = 1.0f - args.beta2,
                    .epsilon = args.epsilon,
                    .weight_decay = args.weight_decay},
        args.master.numel(), stream);
  };
  dispatch(has_weight ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
    if (args.m.dtype() == DType::kBF16) {
      with_types.template operator()<BFloat16, W>();
    } else {
      with_types.template operator()<float, W>();
    }
  });
}

}  // namespace mantissa::cuda
