// AdamW with decoupled weight decay, one pass in fp32 that also writes the low-precision weight:
//   g = gradient multiplier;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr decay w;  w -= lr (m / c1) / (sqrt(v / c2) + epsilon);  weight = round(w)
// A bf16 m is rounded when stored; the update itself uses the unrounded m. A stochastically rounded weight is written
// block by block, from masters that are still in the cache: its random words come for several vectors at a time. State
// in fewer bits is updated by core/cpu/adamw_blocks.cc.
// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019.
#include "core/kernels/optimizer/args.h"

#include <algorithm>
#include <type_traits>

#include "core/kernels/check_args.h"
#include "core/kernels/optimizer/adamw_blocks_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/optimizer/adamw_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"
#include "core/kernels/optimizer/adamw-inl.h"
#include "core/kernels/optimizer/stochastic_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// weight is null if there is none.
template <typename M, typename W>
void adamw_block(const AdamWArgs& args, const AdamWFactors& factors, int64_t begin, int64_t n, W* weight) {
  const float* gradient = args.gradient.data<float>() + begin;
  float* master = args.master.data<float>() + begin;
  M* m_data = args.m.data<M>() + begin;
  float* v_data = args.v.data<float>() + begin;
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto m = load(m_data + i, count), v = load(v_data + i, count);
    const auto fall = update_moments(factors, load(gradient + i, count), m, v);
    const auto updated = updated_weight(factors, load(master + i, count), fall);
    store(m, m_data + i, count);
    store(v, v_data + i, count);
    store(updated, master + i, count);
    if (weight) store(updated, weight + i, count);
  });
}

// begin is a multiple of 4.
template <typename W>
void round_block(const AdamWArgs& args, uint32_t update, int64_t begin, int64_t n, W* weight) {
  const float* master = args.master.data<float>() + begin;
  const int64_t lanes = float_lanes();
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    element_words(args.key, args.parameter, update, args.first_element + begin + done, words);
    for_each_vector(std::min(4 * lanes, n - done), [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store_stochastically(load(master + done + i, count), hn::Load(WordTag(), words + i), weight + done + i, count);
    });
  }
}

// Writes only the weight, from the current masters.
template <typename W>
void write_block(const AdamWArgs& args, uint32_t update, int64_t begin, int64_t n, W* weight) {
  if constexpr (!std::is_same_v<W, float>) {
    if (args.rounding == WeightRounding::kStochastic) return round_block(args, update, begin, n, weight);
  }
  const float* master = args.master.data<float>() + begin;
  for_each_vector(
      n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { store(load(master + i, count), weight + i, count); });
}

void adamw_kernel(const AdamWArgs& args, const UpdateControl& control) {
  const bool updates = args.gradient.defined(), has_weight = args.weight.defined();
  const AdamWFactors factors(args, control);
  const bool one_pass = updates && args.rounding == WeightRounding::kNearest;
  dispatch(updates ? args.m.dtype() : DType::kF32, [&]<typename M>() {
    dispatch(has_weight ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
      parallel_blocks(args.master.numel(), [&](int64_t begin, int64_t count) {
        W* weight = has_weight ? args.weight.data<W>() + begin : nullptr;
        if (updates) adamw_block<M, W>(args, factors, begin, count, one_pass ? weight : nullptr);
        if (has_weight && !one_pass) write_block<W>(args, control.update, begin, count, weight);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(adamw_kernel);

void run(const AdamWArgs& args) {
  check_args(args);
  const UpdateControl control = read_record<UpdateControl>(args.control);
  if (control.apply == 0) return;
  if (!args.is_wide()) return adamw_blocks(args, control);
  HWY_DYNAMIC_DISPATCH(adamw_kernel)(args, control);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
