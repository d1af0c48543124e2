// AdamW with decoupled weight decay, one pass in fp32 that also writes the low-precision weight:
//   g = gradient multiplier;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr decay w;  w -= lr (m / c1) / (sqrt(v / c2) + epsilon);  weight = round(w)
// A bf16 m is rounded when stored; the update itself uses the unrounded one. A weight that is rounded stochastically is
// written block by block, from masters that are still in the cache: its words come for several vectors at a time.
// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019.
#include "core/cpu/adamw.h"

#include <algorithm>
#include <type_traits>

#include "core/backend/kernel_checks.h"
#include "core/cpu/read_record.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/adamw.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/philox-inl.h"
#include "core/cpu/simd-inl.h"
#include "core/cpu/stochastic_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// weight is null when there is none.
template <typename M, typename W>
void adamw_block(const AdamWArgs& args, const UpdateControl& control, int64_t begin, int64_t n, W* weight) {
  const FloatTag df;
  const float* gradient = args.gradient.data<float>() + begin;
  float* master = args.master.data<float>() + begin;
  M* m_data = args.m.data<M>() + begin;
  float* v_data = args.v.data<float>() + begin;
  const auto multiplier = hn::Set(df, control.gradient_multiplier);
  const auto beta1 = hn::Set(df, args.beta1), one_minus_beta1 = hn::Set(df, 1.0f - args.beta1);
  const auto beta2 = hn::Set(df, args.beta2), one_minus_beta2 = hn::Set(df, 1.0f - args.beta2);
  const auto decay = hn::Set(df, control.learning_rate * args.weight_decay);
  const auto step = hn::Set(df, control.learning_rate / control.bias_correction1);
  const auto inverse_correction2 = hn::Set(df, 1.0f / control.bias_correction2);
  const auto epsilon = hn::Set(df, args.epsilon);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto g = hn::Mul(load(gradient + i, count), multiplier);
    const auto m = hn::MulAdd(beta1, load(m_data + i, count), hn::Mul(one_minus_beta1, g));
    const auto v = hn::MulAdd(beta2, load(v_data + i, count), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const auto w = load(master + i, count);
    const auto decayed = hn::NegMulAdd(decay, w, w);
    const auto denominator = hn::Add(hn::Sqrt(hn::Mul(v, inverse_correction2)), epsilon);
    const auto updated = hn::Sub(decayed, hn::Div(hn::Mul(step, m), denominator));
    store(m, m_data + i, count);
    store(v, v_data + i, count);
    store(updated, master + i, count);
    if (weight) store(updated, weight + i, count);
  });
}

// begin is a multiple of 4.
template <typename W>
void round_block(const AdamWArgs& args, uint32_t update, int64_t begin, int64_t n, W* weight) {
  const WordTag du;
  const float* master = args.master.data<float>() + begin;
  const int64_t lanes = float_lanes();
  const auto parameter = hn::Set(du, args.parameter), number = hn::Set(du, update);
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    const auto group = static_cast<uint64_t>(args.first_element + begin + done) / 4;
    const auto first = hn::Set(du, static_cast<uint32_t>(group));
    const auto high = static_cast<uint32_t>(group >> 32);
    const auto low = hn::Add(first, hn::Iota(du, 0));
    const auto carried = hn::IfThenElse(hn::Lt(low, first), hn::Set(du, high + 1), hn::Set(du, high));
    philox_words(args.key, low, carried, parameter, number, words);
    for_each_vector(std::min(4 * lanes, n - done), [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store_stochastically(load(master + done + i, count), hn::Load(du, words + i), weight + done + i, count);
    });
  }
}

// The weight alone, from masters as they are.
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
  const bool one_pass = updates && args.rounding == WeightRounding::kNearest;
  dispatch(updates ? args.m.dtype() : DType::kF32, [&]<typename M>() {
    dispatch(has_weight ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
      parallel_blocks(args.master.numel(), [&](int64_t begin, int64_t count) {
        W* weight = has_weight ? args.weight.data<W>() + begin : nullptr;
        if (updates) adamw_block<M, W>(args, control, begin, count, one_pass ? weight : nullptr);
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

void adamw(const AdamWArgs& args) {
  check_args(args);
  const UpdateControl control = read_record<UpdateControl>(args.control);
  if (control.apply == 0) return;
  HWY_DYNAMIC_DISPATCH(adamw_kernel)(args, control);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
