// AdamW with state in fewer bits: weights without a master, second moments in bf16, moments in 8 bits. The formula of
// adamw.cu.cc in fp32. A warp takes a block of kDynamicBlock elements, eight to a lane, in two groups of four. So four
// neighbours are one access and share their random words, and the absmax of new moments is a reduction over the warp.
// Moments of both maps are widened and narrowed by tables in shared memory.
#include <cstddef>
#include <type_traits>

#include "core/cuda/device/device.h"
#include "core/cuda/device/random_words.h"
#include "core/kernels/optimizer/args.h"
#include "core/quant/dynamic_map.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

constexpr int kGroup = 4;                                                     // neighbours in a lane
constexpr int kGroups = static_cast<int>(kDynamicBlock) / (kLanes * kGroup);  // of a lane

// A map of core/quant/dynamic_map.h as a table in shared memory, which each block computes when it begins.
template <DynamicMap kMap>
struct DynamicMapTable {
  static constexpr int kLast = last_position(kMap);

  float magnitudes[kLast + 1], thresholds[kLast];  // by position

  // By all threads; a barrier must follow.
  __device__ __forceinline__ void compute() {
    for (int position = static_cast<int>(threadIdx.x); position <= kLast; position += static_cast<int>(blockDim.x)) {
      magnitudes[position] = dynamic_magnitude(kMap, position);
      if (position < kLast) thresholds[position] = dynamic_threshold(kMap, position);
    }
  }

  __device__ __forceinline__ float decode(uint8_t code, float absmax) const {
    if (kMap == DynamicMap::kUnsigned || code <= 128) return magnitudes[code] * absmax;
    return -magnitudes[256 - code] * absmax;
  }

  __device__ __forceinline__ uint8_t encode(float value, float absmax) const {
    return encode_dynamic(kMap, value, absmax, thresholds);
  }
};

enum class WeightForm : uint8_t { kMaster, kStochastic, kCompensated };

using TableOfM = DynamicMapTable<DynamicMap::kSigned>;
using TableOfV = DynamicMapTable<DynamicMap::kUnsigned>;

template <typename T>
constexpr bool kHasCodes = std::is_same_v<T, uint8_t>;

struct Constants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;
};

// The factors of one update, and its number.
struct Step {
  float multiplier, decay, step, inverse_correction2;
  uint32_t number;
};

// A lane's elements of a block.
using Values = float[kGroups][kGroup];

// The place of a lane's elements: group g begins at element first(g) of the update.
struct Lane {
  int64_t begin, numel;  // of the block; of the update
  int lane;
  bool vectors;  // whether addresses allow whole groups

  __device__ __forceinline__ int64_t first(int group) const { return begin + (group * kLanes + lane) * kGroup; }
  __device__ __forceinline__ bool takes_group(int group) const { return vectors && first(group) + kGroup <= numel; }
};

// Elements beyond the last are 0.
template <typename T>
__device__ __forceinline__ void read(const Lane& lane, const T* from, Values& to) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int64_t first = lane.first(group);
    if (lane.takes_group(group)) {
      load<kGroup>(from + first, to[group]);
      continue;
    }
#pragma unroll
    for (int k = 0; k < kGroup; ++k) to[group][k] = first + k < lane.numel ? widen(from[first + k]) : 0.0f;
  }
}

// stored(group, k): element k of a group as a T.
template <typename T, typename Stored>
__device__ __forceinline__ void write(const Lane& lane, T* to, const Stored& stored) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int64_t first = lane.first(group);
    Vector<T, kGroup> packed;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) packed.values[k] = stored(group, k);
    if (lane.takes_group(group)) {
      *reinterpret_cast<Vector<T, kGroup>*>(to + first) = packed;
      continue;
    }
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if (first + k < lane.numel) to[first + k] = packed.values[k];
    }
  }
}

template <typename T>
__device__ __forceinline__ void write_nearest(const Lane& lane, const Values& values, T* to) {
  write(lane, to, [&](int group, int k) { return narrow<T>(values[group][k]); });
}

// Stochastic rounding by the random words of AdamWArgs.
struct Rounding {
  uint64_t weight_key, moment_key;
  int64_t first_group;  // of four elements: where the parameter's part begins
  uint32_t parameter;

  template <typename T>
  __device__ __forceinline__ void write(const Lane& lane, uint64_t key, uint32_t update, const Values& values,
                                        T* to) const {
    const auto words_of = [&](int64_t local) { return element_words(key, first_group + local, parameter, update); };
    uint32_t words[kGroups][kGroup];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) draw_words(lane.first(group), words_of, words[group]);
    cuda::write(lane, to, [&](int group, int k) { return round_stochastically<T>(values[group][k], words[group][k]); });
  }
};

// A moment with elements T; uint8_t are codes.
template <typename T>
struct Moment {
  T* values;
  float* absmax;

  template <typename Table>
  __device__ __forceinline__ void read(const Lane& lane, const Table& table, Values& to) const {
    if constexpr (kHasCodes<T>) {
      const float scale = absmax[lane.begin / kDynamicBlock];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int64_t first = lane.first(group);
        Vector<uint8_t, kGroup> codes{};
        if (lane.takes_group(group)) {
          codes = *reinterpret_cast<const Vector<uint8_t, kGroup>*>(values + first);
        } else {
#pragma unroll
          for (int k = 0; k < kGroup; ++k) codes.values[k] = first + k < lane.numel ? values[first + k] : uint8_t{0};
        }
#pragma unroll
        for (int k = 0; k < kGroup; ++k) to[group][k] = table.decode(codes.values[k], scale);
      }
    } else {
      cuda::read(lane, values, to);
    }
  }

  template <typename Table>
  __device__ __forceinline__ void write_codes(const Lane& lane, const Table& table, const Values& from) const {
    unsigned largest = 0;  // magnitudes are ordered as their bits are, NaN above Inf
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        const unsigned bits = float_bits(from[group][k]) & 0x7fffffffu;
        if (lane.first(group) + k < lane.numel && bits > largest) largest = bits;
      }
    }
    largest = warp_reduce(largest, [](unsigned a, unsigned b) { return a > b ? a : b; });
    const float scale = float_from_bits(largest);
    if (lane.lane == 0) absmax[lane.begin / kDynamicBlock] = scale;
    cuda::write(lane, values, [&](int group, int k) { return table.encode(from[group][k], scale); });
  }
};

struct Weights {
  float* master;
  void* weight;
  BFloat16* compensation;
  DType dtype;  // of the weight
  WeightForm form;
  WeightRounding rounding;

  __device__ __forceinline__ void read(const Lane& lane, Values& w, Values& c) const {
    if (form == WeightForm::kMaster) return cuda::read(lane, master, w);
    cuda::read(lane, static_cast<const BFloat16*>(weight), w);
    if (form == WeightForm::kCompensated) cuda::read(lane, compensation, c);
  }

  template <typename T>
  __device__ __forceinline__ void write_rounded(const Lane& lane, uint32_t update, const Values& w,
                                                const Rounding& random) const {
    if (rounding == WeightRounding::kStochastic)
      return random.write(lane, random.weight_key, update, w, static_cast<T*>(weight));
    write_nearest(lane, w, static_cast<T*>(weight));
  }

  __device__ __forceinline__ void write(const Lane& lane, uint32_t update, const Values& w, const Values& c,
                                        const Rounding& random) const {
    if (form == WeightForm::kMaster) write_nearest(lane, w, master);
    if (form == WeightForm::kCompensated) write_nearest(lane, c, compensation);
    if (weight == nullptr) return;
    if (dtype == DType::kF32) return write_nearest(lane, w, static_cast<float*>(weight));
    if (dtype == DType::kF16) return write_rounded<Float16>(lane, update, w, random);
    write_rounded<BFloat16>(lane, update, w, random);
  }
};

template <typename M, typename V>
struct Update {
  const float* gradient;
  Moment<M> m;
  Moment<V> v;
  Weights weights;
  const UpdateControl* control;
  unsigned* faults;  // null when nobody asks
  Constants constants;
  Rounding rounding;
  bool vectors;
};

struct Tables {
  TableOfM* m;
  TableOfV* v;
};

__device__ __forceinline__ void update_element(const Constants& f, const Step& s, WeightForm form, float gradient,
                                               float& m, float& v, float& w, float& c) {
  const float g = gradient * s.multiplier;
  m = fmaf(f.beta1, m, f.one_minus_beta1 * g);
  v = fmaf(f.beta2, v, f.one_minus_beta2 * (g * g));
  const float root = sqrtf(v * s.inverse_correction2);
  const float fall = s.step * m / (root + f.epsilon);
  if (form != WeightForm::kCompensated) {
    w = fmaf(-s.decay, w, w) - fall;
    return;
  }
  const float sum = fmaf(-s.decay, w, -fall) + c;
  const float rounded = widen(narrow<BFloat16>(w + sum));
  c = sum - (rounded - w);
  w = rounded;
}

template <typename M, typename V>
__device__ __forceinline__ void update_block(const Update<M, V>& a, const Tables& tables, const Step& step,
                                             const Lane& lane) {
  Values g, m, v, w, c{};
  read(lane, a.gradient, g);
  a.m.read(lane, *tables.m, m);
  a.v.read(lane, *tables.v, v);
  a.weights.read(lane, w, c);
  bool is_fault = false;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      update_element(a.constants, step, a.weights.form, g[group][k], m[group][k], v[group][k], w[group][k],
                     c[group][k]);
      is_fault |= lane.first(group) + k < lane.numel &&
                  (is_state_fault(w[group][k]) || is_state_fault(m[group][k]) || is_state_fault(v[group][k]));
    }
  }
  if (is_fault && a.faults != nullptr) atomicMax(a.faults, 1u);
  a.weights.write(lane, step.number, w, c, a.rounding);
  if constexpr (kHasCodes<M>) {
    a.m.write_codes(lane, *tables.m, m);
  } else {
    write_nearest(lane, m, a.m.values);
  }
  if constexpr (kHasCodes<V>) {
    a.v.write_codes(lane, *tables.v, v);
  } else if constexpr (std::is_same_v<V, BFloat16>) {
    a.rounding.write(lane, a.rounding.moment_key, step.number, v, a.v.values);
  } else {
    write_nearest(lane, v, a.v.values);
  }
}

template <typename M, typename V>
__global__ void adamw_blocks_kernel(Update<M, V> a, int64_t numel) {
  const UpdateControl control = *a.control;
  if (control.apply == 0) return;
  auto* const shared = shared_memory<std::byte>();
  const Tables tables{reinterpret_cast<TableOfM*>(shared),
                      reinterpret_cast<TableOfV*>(shared + (kHasCodes<M> ? sizeof(TableOfM) : 0))};
  if constexpr (kHasCodes<M>) tables.m->compute();
  if constexpr (kHasCodes<V>) tables.v->compute();
  if constexpr (kHasCodes<M> || kHasCodes<V>) __syncthreads();
  const auto rate = static_cast<float>(control.learning_rate);
  const Step step{static_cast<float>(control.gradient_multiplier), rate * a.constants.weight_decay,
                  rate / static_cast<float>(control.bias_correction1),
                  1.0f / static_cast<float>(control.bias_correction2), control.update};
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kLanes);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  for (int64_t begin = warp * kDynamicBlock; begin < numel; begin += warps * kDynamicBlock) {
    const Lane lane{
        .begin = begin, .numel = numel, .lane = static_cast<int>(threadIdx.x % kLanes), .vectors = a.vectors};
    update_block(a, tables, step, lane);
  }
}

WeightForm form_of(const AdamWArgs& args) {
  if (args.master.defined()) return WeightForm::kMaster;
  return args.compensation.defined() ? WeightForm::kCompensated : WeightForm::kStochastic;
}

template <typename M, typename V>
void run(const AdamWArgs& args, CudaStream& stream) {
  constexpr unsigned kThreads = 256;
  const int64_t numel = args.numel();
  if (numel == 0) return;
  const Weights weights{.master = data_or_null<float>(args.master),
                        .weight = raw_or_null(args.weight),
                        .compensation = data_or_null<BFloat16>(args.compensation),
                        .dtype = args.weight.defined() ? args.weight.dtype() : DType::kF32,
                        .form = form_of(args),
                        .rounding = args.rounding};
  const Update<M, V> update{
      .gradient = args.gradient.data<float>(),
      .m = {args.m.data<M>(), data_or_null<float>(args.m_absmax)},
      .v = {args.v.data<V>(), data_or_null<float>(args.v_absmax)},
      .weights = weights,
      .control = reinterpret_cast<const UpdateControl*>(args.control.raw()),
      .faults = reinterpret_cast<unsigned*>(data_or_null<int32_t>(args.faults)),
      .constants = {args.beta1, 1.0f - args.beta1, args.beta2, 1.0f - args.beta2, args.epsilon, args.weight_decay},
      .rounding = {args.key, args.moment_key, args.first_element / 4, args.parameter},
      .vectors = all_aligned(args.gradient.raw(), args.m.raw(), args.v.raw(), weights.master,
                             static_cast<const std::byte*>(weights.weight), weights.compensation)};
  const size_t table_bytes = (kHasCodes<M> ? sizeof(TableOfM) : 0) + (kHasCodes<V> ? sizeof(TableOfV) : 0);
  const LaunchShape shape{.grid = blocks_for(numel, kThreads / kLanes * kDynamicBlock, stream),
                          .block = kThreads,
                          .shared_bytes = table_bytes};
  launch(adamw_blocks_kernel<M, V>, shape, stream.handle(), update, numel);
}

template <typename Run>
void with_moment(DType dtype, const Run& run) {
  if (dtype == DType::kU8) return run.template operator()<uint8_t>();
  if (dtype == DType::kBF16) return run.template operator()<BFloat16>();
  run.template operator()<float>();
}

}  // namespace

void adamw_blocks(const AdamWArgs& args, CudaStream& stream) {
  with_moment(args.m.dtype(),
              [&]<typename M>() { with_moment(args.v.dtype(), [&]<typename V>() { run<M, V>(args, stream); }); });
}

}  // namespace mantissa::cuda
