// Vector arithmetic of an AdamW update, shared by core/cpu/adamw.cc and core/cpu/adamw_blocks.cc.
//
// Included once per instruction set, after simd-inl.h.
#if defined(MANTISSA_CORE_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_ADAMW_INL_H_
#undef MANTISSA_CORE_CPU_ADAMW_INL_H_
#else
#define MANTISSA_CORE_CPU_ADAMW_INL_H_
#endif

#include "core/cpu/simd_math-inl.h"
#include "core/cpu/simd-inl.h"
#include "core/kernels/optimizer/args.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// The factors of one update.
struct AdamWFactors {
  AdamWFactors(const AdamWArgs& args, const UpdateControl& control)
      : multiplier(control.gradient_multiplier),
        beta1(args.beta1),
        beta2(args.beta2),
        decay(control.learning_rate * args.weight_decay),
        step(control.learning_rate / control.bias_correction1),
        inverse_correction2(1.0f / control.bias_correction2),
        epsilon(args.epsilon) {}

  float multiplier, beta1, beta2, decay, step, inverse_correction2, epsilon;
};

// Updates m and v by the gradient. Returns the amount to subtract from the weight, excluding its decay.
HWY_INLINE FloatVec update_moments(const AdamWFactors& f, FloatVec gradient, FloatVec& m, FloatVec& v) {
  const FloatTag df;
  const auto g = hn::Mul(gradient, hn::Set(df, f.multiplier));
  m = hn::MulAdd(hn::Set(df, f.beta1), m, hn::Mul(hn::Set(df, 1.0f - f.beta1), g));
  v = hn::MulAdd(hn::Set(df, f.beta2), v, hn::Mul(hn::Set(df, 1.0f - f.beta2), hn::Mul(g, g)));
  const auto root = hn::Sqrt(hn::Mul(v, hn::Set(df, f.inverse_correction2)));
  return hn::Div(hn::Mul(hn::Set(df, f.step), m), hn::Add(root, hn::Set(df, f.epsilon)));
}

HWY_INLINE FloatVec updated_weight(const AdamWFactors& f, FloatVec w, FloatVec fall) {
  return hn::Sub(hn::NegMulAdd(hn::Set(FloatTag(), f.decay), w, w), fall);
}

// The random words of elements [element, element + 4 * lanes) of a parameter in one update, see AdamWArgs. element is a
// multiple of 4.
HWY_INLINE void element_words(uint64_t key, uint32_t parameter, uint32_t update, int64_t element, uint32_t* words) {
  const WordTag du;
  const auto group = static_cast<uint64_t>(element) / 4;
  const auto first = hn::Set(du, static_cast<uint32_t>(group));
  const auto high = static_cast<uint32_t>(group >> 32);
  const auto low = hn::Add(first, hn::Iota(du, 0));
  const auto carried = hn::IfThenElse(hn::Lt(low, first), hn::Set(du, high + 1), hn::Set(du, high));
  philox_words(key, low, carried, hn::Set(du, parameter), hn::Set(du, update), words);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
