// Gated linear unit; x holds gate and up side by side in each row. In fp32, one rounding on store.
//   y = silu(gate) up,  silu(g) = g s,  s = sigmoid(g)
//   d_up = dy silu(g),  d_gate = dy up (s + g s (1 - s))
//
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
#include "core/kernels/activation/args.h"


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation/swiglu_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename T>
void forward_row(const T* gate, const T* up, T* y, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto g = load(gate + i, count);
    store(hn::Mul(hn::Mul(g, sigmoid(g).value), load(up + i, count)), y + i, count);
  });
}

template <typename T>
void backward_row(const T* gate, const T* up, const T* dy, T* d_gate, T* d_up, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto g = load(gate + i, count);
    const auto u = load(up + i, count);
    const auto d = load(dy + i, count);
    const auto s = sigmoid(g);
    const auto silu = hn::Mul(g, s.value);
    store(hn::Mul(d, silu), d_up + i, count);
    store(hn::Mul(hn::Mul(d, u), hn::MulAdd(silu, s.complement, s.value)), d_gate + i, count);
  });
}

void swiglu_forward_kernel(const SwigluForwardArgs& args) {
  const int64_t features = args.y.shape().last();
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    parallel_rows(args.y.numel() / features, features, [&](int64_t row) {
      const T* gate = x + row * 2 * features;
      forward_row(gate, gate + features, y + row * features, features);
    });
  });
}

void swiglu_backward_kernel(const SwigluBackwardArgs& args) {
  const int64_t features = args.dy.shape().last();
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    parallel_rows(args.dy.numel() / features, features, [&](int64_t row) {
      const T* gate = x + row * 2 * features;
      T* d_gate = dx + row * 2 * features;
      backward_row(gate, gate + features, dy + row * features, d_gate, d_gate + features, features);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(swiglu_forward_kernel);
HWY_EXPORT(swiglu_backward_kernel);

void run(const SwigluForwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(swiglu_forward_kernel)(args);
}

void run(const SwigluBackwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(swiglu_backward_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
