// Matrix products in tf32, which is fp32 without the lower 13 bits of the mantissa. Rounding is an addition to the
// bits; a carry into the exponent is correct.
#include "core/cpu/memory.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "core/kernels/gemm/steps.h"
#include "core/kernels/reduction/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemm/tf32_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

HWY_INLINE FloatVec rounded_to_tf32(FloatVec v) {
  const FloatTag df;
  const WordTag du;
  const auto bits = hn::BitCast(du, v);
  const auto is_odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0xfff)), is_odd);
  const auto cut = hn::BitCast(df, hn::And(rounded, hn::Set(du, 0xffffe000u)));
  return hn::IfThenElse(hn::IsNaN(v), v, cut);  // the addition could carry a NaN's payload away
}

void tf32_kernel(const float* src, float* dst, int64_t count) {
  parallel_blocks(count, [&](int64_t begin, int64_t n) {
    for_each_vector(n, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      store(rounded_to_tf32(load(src + begin + i, lanes)), dst + begin + i, lanes);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(tf32_kernel);

namespace {

// src rounded to tf32, in `scratch`.
Tensor rounded_to_tf32(const Tensor& src, Scratch& scratch) {
  std::byte* const memory = scratch.reserve(src.size_bytes());
  HWY_DYNAMIC_DISPATCH(tf32_kernel)(src.data<float>(), reinterpret_cast<float*>(memory), src.numel());
  return Tensor(std::make_shared<Storage>(memory, src.size_bytes(), src.device(), nullptr), DType::kF32, src.shape());
}

}  // namespace

void gemm_tf32(const GemmArgs& args) {
  thread_local Scratch scratch_a, scratch_b;
  if (args.bias_gradient.defined())
    return gemm_then_bias_gradient(args, gemm_tf32, [](const auto& step) { run(step); });
  GemmArgs product = args;
  product.a = rounded_to_tf32(args.a, scratch_a);
  product.b = rounded_to_tf32(args.b, scratch_b);
  gemm(product, preferred_bf16_gemm());
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
