// AdamW in a single pass in fp32, which also writes the low-precision weight: see args.h. adamw_blocks.cu.cc updates
// state in fewer bits. Fused multiply-adds are spelled out where the CPU kernel has them, so that the bits depend
// neither on the compiler nor on the vector width.
//
// UpdateControl is read from device memory: a verdict on the device can suppress the update without a wait of the host.
// The update's number is read there too, so that repetitions of a captured step use different random words. Bound by
// memory: 28 bytes an element with fp32 moments, plus those of the weight.
#include "core/kernels/optimizer/args.h"

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
    const auto words_of = [&](int64_t local) { return element_words(key, first_group + local, parameter, number); };
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
  unsigned* faults;  // null when nobody asks
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;

  __device__ __forceinline__ Factors factors_of(const UpdateControl& c) const {
    const auto rate = static_cast<float>(c.learning_rate);
    return {static_cast<float>(c.gradient_multiplier), rate * weight_decay,
            rate / static_cast<float>(c.bias_correction1), 1.0f / static_cast<float>(c.bias_correction2)};
  }

  template <int Width>
  __device__ __forceinline__ void update(const Factors& factors, int64_t i, float (&w)[Width]) const {
    float g[Width], first[Width], second[Width];
    load<Width>(gradient + i, g);
    load<Width>(master + i, w);
    load<Width>(m + i, first);
    load<Width>(v + i, second);
    bool is_fault = false;
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      g[k] *= factors.multiplier;
      first[k] = fmaf(beta1, first[k], one_minus_beta1 * g[k]);
      second[k] = fmaf(beta2, second[k], one_minus_beta2 * (g[k] * g[k]));
      const float decayed = fmaf(-factors.decay, w[k], w[k]);
      const float root = sqrtf(second[k] * factors.inverse_correction2);
      w[k] = decayed - factors.step * first[k] / (root + epsilon);
      is_fault |= is_state_fault(w[k]) || is_state_fault(first[k]) || is_state_fault(second[k]);
    }
    if (is_fault && faults != nullptr) atomicMax(faults, 1u);
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
  for (int64_t i = whole * Width + thread; i < numel; i += threads) apply<1>(a, rounding, factors, control.update, i);
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
    const WriteWeight<W> operation{master, weight, control};
    return run<kVectorWidth<float, W>>(operation, rounding, numel, all_aligned(master, weight), stream);
  }
  const auto with_moment = [&]<typename M>() {
    const AdamW<M, W> operation{.gradient = args.gradient.data<float>(),
                                .master = master,
                                .m = args.m.data<M>(),
                                .v = args.v.data<float>(),
                                .weight = weight,
                                .control = control,
                                .faults = reinterpret_cast<unsigned*>(data_or_null<int32_t>(args.faults)),
                                .beta1 = args.beta1,
                                .one_minus_beta1 = 1.0f - args.beta1,
                                .beta2 = args.beta2,
                                .one_minus_beta2 = 1.0f - args.beta2,
                                .epsilon = args.epsilon,
                                .weight_decay = args.weight_decay};
    const bool vectors = all_aligned(operation.gradient, master, operation.m, operation.v, weight);
    run<kVectorWidth<float, M, W>>(operation, rounding, numel, vectors, stream);
  };
  if (args.m.dtype() == DType::kBF16) return with_moment.template operator()<BFloat16>();
  with_moment.template operator()<float>();
}

// Masters and second moments in fp32, first moments float.
void adamw_wide(const AdamWArgs& args, CudaStream& stream) {
  dispatch(args.weight.defined() ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
    if constexpr (!std::is_same_v<W, float>) {
      if (args.rounding == WeightRounding::kStochastic) {
        const Stochastic rounding{args.key, args.first_element / 4, args.parameter};
        return run_with<W>(args, rounding, stream);
      }
    }
    run_with<W>(args, Nearest{}, stream);
  });
}

// ---- Digests of state: a launch for all parts before the update, and another after it, which finds the update's data
// in the L2 cache if they fit. Row y of the grid takes part y.

enum class DigestTime : uint8_t { kBefore, kAfter };

struct DigestedPart {
  const std::byte* items;
  int64_t count, item_bytes;
  Digest* total;
};

// No array: the emulation looks into the arguments of a launch field by field.
struct DigestedParts {
  DigestedPart part0, part1, part2, part3, part4, part5;
  const UpdateControl* control;

  __device__ __forceinline__ const DigestedPart& at(unsigned number) const {
    if (number < 2) return number == 0 ? part0 : part1;
    if (number < 4) return number == 2 ? part2 : part3;
    return number == 4 ? part4 : part5;
  }
};
// No weight has both a compensation and a master.
constexpr unsigned kMostDigested = StateDigests::kParts - 1;
static_assert(kMostDigested == 6);

template <typename Item>
__device__ __forceinline__ Digest digest_of(const DigestedPart& part) {
  const auto* const items = reinterpret_cast<const Item*>(part.items);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Digest digest;
  const int64_t groups = digest_groups(part.count);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < groups; i += threads) {
    digest.add(static_cast<uint64_t>(i), digest_group(items, part.count, i));
  }
  return digest;
}

__global__ void add_digests_kernel(DigestedParts all) {
  if (all.control->apply == 0) return;
  const DigestedPart& part = all.at(blockIdx.y);
  Digest digest = part.item_bytes == 4   ? digest_of<uint32_t>(part)
                  : part.item_bytes == 2 ? digest_of<uint16_t>(part)
                                         : digest_of<uint8_t>(part);
  digest.sum = block_reduce(digest.sum, Sum(), shared_memory<uint64_t>());
  digest.weighted = block_reduce(digest.weighted, Sum(), shared_memory<uint64_t>());
  if (threadIdx.x != 0) return;
  atomic_add(reinterpret_cast<int64_t*>(&part.total->sum), digest.sum);
  atomic_add(reinterpret_cast<int64_t*>(&part.total->weighted), digest.weighted);
}

__global__ void settle_digests_kernel(StateDigests* records, int64_t count, const UpdateControl* control) {
  if (control->apply == 0) return;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread < count) records[thread].settle(control->update);
}

// Adds to `read` (state only) before an update, and to `next` after it.
void add_digests(const AdamWArgs& args, DigestTime time, CudaStream& stream) {
  constexpr unsigned kThreads = 256;
  if (!args.digests.defined() || args.numel() == 0) return;
  auto* const record = record_in<StateDigests>("adamw", args.digests);
  DigestedPart digested[kMostDigested]{};
  unsigned count = 0;
  const auto parts = args.parts();
  for (int part = 0; part < StateDigests::kParts; ++part) {
    const Tensor& tensor = *parts[static_cast<size_t>(part)];
    if (!tensor.defined() || (time == DigestTime::kBefore && !args.is_state(part))) continue;
    digested[count++] = {tensor.raw(), tensor.numel(), size_bytes(tensor.dtype()),
                         (time == DigestTime::kBefore ? record->read : record->next) + part};
  }
  const DigestedParts all{.part0 = digested[0],
                          .part1 = digested[1],
                          .part2 = digested[2],
                          .part3 = digested[3],
                          .part4 = digested[4],
                          .part5 = digested[5],
                          .control = record_in<UpdateControl>("adamw", args.control)};
  const LaunchShape shape{.grid = dim3(blocks_for(args.numel(), kDigestRows * kThreads, stream), count),
                          .block = kThreads,
                          .shared_bytes = kThreads / kLanes * sizeof(uint64_t)};
  launch(add_digests_kernel, shape, stream.handle(), all);
}

}  // namespace

void run(const SettleDigestsArgs& args, CudaStream& stream) {
  constexpr unsigned kThreads = 64;
  const int64_t count = check_args(args);
  const LaunchShape shape{.grid = static_cast<unsigned>(divide_up(count, int64_t{kThreads})), .block = kThreads};
  launch(settle_digests_kernel, shape, stream.handle(), record_in<StateDigests>("settle_digests", args.records), count,
         record_in<UpdateControl>("settle_digests", args.control));
}

void run(const AdamWArgs& args, CudaStream& stream) {
  check_args(args);
  add_digests(args, DigestTime::kBefore, stream);
  (args.is_wide() ? adamw_wide : adamw_blocks)(args, stream);
  add_digests(args, DigestTime::kAfter, stream);
}

}  // namespace mantissa::cuda
