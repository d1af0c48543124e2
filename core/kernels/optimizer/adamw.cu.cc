// AdamW with decoupled weight decay, one pass in fp32 that also writes the low-precision weight:
//   g = gradient multiplier;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr decay w;  w -= lr (m / c1) / (sqrt(v / c2) + epsilon);  weight = round(w)
// A bf16 m is rounded when stored; the update itself uses the unrounded one. adamw_blocks.cu.cc updates state in fewer
// bits. Fused multiply-adds are spelled out where the CPU kernel has them, so that the bits depend neither on the
// compiler nor on the vector width.
//
// UpdateControl is read from device memory: a verdict on the device can suppress the update without a wait of the host.
// The update's number is read there too, so that repetitions of a captured step use different random words. Bound by
// memory: 28 bytes an element with fp32 moments, plus those of the weight.
//
// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019.
#include "core/kernels/optimizer/args.h"

#include <cmath>
#include <type_traits>

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/random_words.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

// Roundings of fp32 values to weights: store_weight() rounds w into weights i ... i + Width - 1 in update `number`.
// To nearest, ties to even.
struct Nearest {
  template <int Width, typename W>
  __device__ __forceinline__ void store_weight(W* weight, const float (&w)[Width], int64_t i, uint32_t) const {
    store<Width>(weight + i, w);
  }
};

// By core/tensor/half.h, with a quarter of a Philox call for each weight.
struct Stochastic {
  uint64_t key;
  int64_t first_group;  // of four elements: where the parameter's part begins
  uint32_t parameter;

  template <int Width, typename W>
  __device__ __forceinline__ void store_weight(W* weight, const float (&w)[Width], int64_t i, uint32_t number) const {
    const auto words_of = [&](int64_t local) {
      const auto group = static_cast<uint64_t>(first_group + local);
      return philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), parameter, number});
    };
    uint32_t words[Width];
    draw_words(i, words_of, words);
    Vector<W, Width> packed;
#pragma unroll
    for (int k = 0; k < Width; ++k) packed.values[k] = round_stochastically<W>(w[k], words[k]);
    *reinterpret_cast<Vector<W, Width>*>(weight + i) = packed;
  }
};

// The factors of one update.
struct Factors {
  float multiplier, decay, step, inverse_correction2;
};

template <typename M, typename W>
struct AdamW {
  const float* gradient;
  float* master;
  M* m;
  float* v;
  W* weight;  // null when there is none
  const UpdateControl* control;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;

  __device__ __forceinline__ Factors factors_of(const UpdateControl& c) const {
    return {.multiplier = c.gradient_multiplier,
            .decay = c.learning_rate * weight_decay,
            .step = c.learning_rate / c.bias_correction1,
            .inverse_correction2 = 1.0f / c.bias_correction2};
  }

  template <int Width>
  __device__ __forceinline__ void update(const Factors& factors, int64_t i, float (&w)[Width]) const {
    float g[Width], first[Width], second[Width];
    load<Width>(gradient + i, g);
    load<Width>(master + i, w);
    load<Width>(m + i, first);
    load<Width>(v + i, second);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      g[k] *= factors.multiplier;
      first[k] = fmaf(beta1, first[k], one_minus_beta1 * g[k]);
      second[k] = fmaf(beta2, second[k], one_minus_beta2 * (g[k] * g[k]));
      const float decayed = fmaf(-factors.decay, w[k], w[k]);
      const float root = sqrtf(second[k] * factors.inverse_correction2);
      w[k] = decayed - factors.step * first[k] / (root + epsilon);
    }
    store<Width>(m + i, first);
    store<Width>(v + i, second);
    store<Width>(master + i, w);
  }
};

// Writes only the weight, from the current masters.
template <typename W>
struct WriteWeight {
  const float* master;
  W* weight;
  const UpdateControl* control;

  __device__ __forceinline__ Factors factors_of(const UpdateControl&) const { return {}; }

  template <int Width>
  __device__ __forceinline__ void update(const Factors&, int64_t i, float (&w)[Width]) const {
    load<Width>(master + i, w);
  }
};

template <int Width, typename Operation, typename Rounding>
__device__ __forceinline__ void apply(const Operation& a, const Rounding& rounding, const Factors& factors,
                                      uint32_t number, int64_t i) {
  float w[Width];
  a.template update<Width>(factors, i, w);
  if (a.weight != nullptr) rounding.store_weight(a.weight, w, i, number);
}

template <int Width, typename Operation, typename Rounding>
__global__ void adamw_kernel(Operation a, Rounding rounding, int64_t numel) {
  const UpdateControl control = *a.control;
  if (control.apply == 0) return;
  const Factors factors = a.factors_of(control);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t whole = numel / Width;
  for (int64_t i = thread; i < whole; i += threads) apply<Width>(a, rounding, factors, control.update, i * Width);
  for (int64_t i = whole * Width + thread; i < numel; i += threads) {
    apply<1>(a, rounding, factors, control.update, i);
  }
}

template <int Width, typename Operation, typename Rounding>
void run(const Operation& a, const Rounding& rounding, int64_t numel, bool vectors, CudaStream& stream) {
  constexpr unsigned kThreads = 256;
  if (numel == 0) return;
  const LaunchShape shape{.grid = blocks_for(numel, int64_t{kThreads} * (vectors ? Width : 1), stream),
                          .block = kThreads};
  launch(vectors ? adamw_kernel<Width, Operation, Rounding> : adamw_kernel<1, Operation, Rounding>, shape,
         stream.handle(), a, rounding, numel);
}

template <typename W, typename Rounding>
void run_with(const AdamWArgs& args, const Rounding& rounding, CudaStream& stream) {
  float* master = args.master.data<float>();
  W* weight = data_or_null<W>(args.weight);
  const auto* control = reinterpret_cast<const UpdateControl*>(args.control.raw());
  const int64_t numel = args.master.numel();
  if (!args.gradient.defined()) {
    const WriteWeight<W> operation{.master = master, .weight = weight, .control = control};
    return run<kVectorWidth<float, W>>(operation, rounding, numel, all_aligned(master, weight), stream);
  }
  const auto with_moment = [&]<typename M>() {
    const AdamW<M, W> operation{.gradient = args.gradient.data<float>(),
                                .master = master,
                                .m = args.m.data<M>(),
                                .v = args.v.data<float>(),
                                .weight = weight,
                                .control = control,
                                .beta1 = args.beta1,
                                .one_minus_beta1 = 1.0f - args.beta1,
                                .beta2 = args.beta2,
                                .one_minus_beta2 = 1.0f - args.beta2,
                                .epsilon = args.epsilon,
                                .weight_decay = args.weight_decay};
    const bool vectors = all_aligned(operation.gradient, master, operation.m, operation.v, weight);
    run<kVectorWidth<float, M, W>>(operation, rounding, numel, vectors, stream);
  };
  if (args.m.dtype() == DType::kBF16) {
    with_moment.template operator()<BFloat16>();
  } else {
    with_moment.template operator()<float>();
  }
}

}  // namespace

void run(const AdamWArgs& args, CudaStream& stream) {
  check_args(args);
  if (!args.is_wide()) return adamw_blocks(args, stream);
  dispatch(args.weight.defined() ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
    if constexpr (!std::is_same_v<W, float>) {
      if (args.rounding == WeightRounding::kStochastic) {
        const Stochastic rounding{.key = args.key, .first_group = args.first_element / 4, .parameter = args.parameter};
        return run_with<W>(args, rounding, stream);
      }
    }
    run_with<W>(args, Nearest{}, stream);
  });
}

}  // namespace mantissa::cuda
