// Gaussian error linear unit, y = x Phi(x), in fp32 with one rounding on store.
//
// kTanh: y = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 = sigmoid(2u):
//   y = x s,  y' = s + x s (1 - s) (2u)',  s = sigmoid(2u): no cancellation where s is tiny.
// kErf: y = x cdf(x),  y' = cdf(x) + x density(x), of the standard normal distribution.
// As in PyTorch, y(-Inf) = y'(+-Inf) = NaN: an overflow upstream does not turn into an innocent 0.
// Source: Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016.
#include "core/kernels/activation/gelu_cpu.h"

#include "core/kernels/activation/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation/gelu_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

constexpr float kTwoSqrtTwoOverPi = 1.59576912160573071f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

HWY_INLINE FloatVec two_u(FloatVec x) {
  const FloatTag df;
  const auto inner = hn::MulAdd(hn::Mul(x, x), hn::Set(df, kCubic), hn::Set(df, 1.0f));
  return hn::Mul(hn::Mul(x, hn::Set(df, kTwoSqrtTwoOverPi)), inner);
}

struct TanhForm {
  static HWY_INLINE FloatVec value(FloatVec x) { return hn::Mul(x, sigmoid(two_u(x)).value); }
  static HWY_INLINE FloatVec derivative(FloatVec x) {
    const FloatTag df;
    const auto s = sigmoid(two_u(x));
    // (2u)' grows like x^2 and must stay finite where s (1 - s) is 0. Beyond |x| = 100, s (1 - s) is certainly 0.
    const auto bounded = hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(df, 100.0f)), hn::Set(df, 100.0f), x);
    const auto slope = hn::MulAdd(hn::Mul(bounded, bounded), hn::Set(df, 3.0f * kCubic * kTwoSqrtTwoOverPi),
                                  hn::Set(df, kTwoSqrtTwoOverPi));
    return hn::MulAdd(x, hn::Mul(hn::Mul(s.value, s.complement), slope), s.value);
  }
};

struct ErfForm {
  static HWY_INLINE FloatVec value(FloatVec x) { return hn::Mul(x, normal(x).cdf); }
  static HWY_INLINE FloatVec derivative(FloatVec x) {
    const Normal n = normal(x);
    return hn::MulAdd(x, n.density, n.cdf);
  }
};

template <class Form, typename T>
void forward_block(const T* x, T* y, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count)
                         MANTISSA_VECTOR_LAMBDA { store(Form::value(load(x + i, count)), y + i, count); });
}

template <class Form, typename T>
void backward_block(const T* x, const T* dy, T* dx, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Mul(load(dy + i, count), Form::derivative(load(x + i, count))), dx + i, count);
  });
}

// Calls body with the form and the element type as template arguments.
template <typename Body>
void dispatch_form(GeluForm form, DType dtype, const Body& body) {
  dispatch(dtype, [&]<typename T>() {
    if (form == GeluForm::kTanh) {
      body.template operator()<TanhForm, T>();
    } else {
      body.template operator()<ErfForm, T>();
    }
  });
}

void gelu_forward_kernel(const GeluForwardArgs& args) {
  dispatch_form(args.form, args.x.dtype(), [&]<class Form, typename T>() {
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    parallel_blocks(args.x.numel(),
                    [&](int64_t begin, int64_t count) { forward_block<Form>(x + begin, y + begin, count); });
  });
}

void gelu_backward_kernel(const GeluBackwardArgs& args) {
  dispatch_form(args.form, args.x.dtype(), [&]<class Form, typename T>() {
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t count) {
      backward_block<Form>(x + begin, dy + begin, dx + begin, count);
    });
  });
}

void gelu_forward_rows(const GeluForwardArgs& args, const MatrixPart& part) {
  dispatch_form(args.form, args.x.dtype(), [&]<class Form, typename T>() {
    const int64_t stride = args.x.shape().last();
    for (int64_t row = part.row; row < part.row + part.rows; ++row) {
      const int64_t begin = row * stride + part.column;
      forward_block<Form>(args.x.data<T>() + begin, args.y.data<T>() + begin, part.columns);
    }
  });
}

void gelu_backward_rows(const GeluBackwardArgs& args, const MatrixPart& part) {
  dispatch_form(args.form, args.x.dtype(), [&]<class Form, typename T>() {
    const int64_t stride = args.x.shape().last();
    for (int64_t row = part.row; row < part.row + part.rows; ++row) {
      const int64_t begin = row * stride + part.column;
      backward_block<Form>(args.x.data<T>() + begin, args.dy.data<T>() + begin, args.dx.data<T>() + begin,
                           part.columns);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(gelu_forward_kernel);
HWY_EXPORT(gelu_backward_kernel);
HWY_EXPORT(gelu_forward_rows);
HWY_EXPORT(gelu_backward_rows);

void run(const GeluForwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(gelu_forward_kernel)(args);
}

void run(const GeluBackwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(gelu_backward_kernel)(args);
}

void gelu_forward_part(const GeluForwardArgs& args, const MatrixPart& part) {
  HWY_DYNAMIC_DISPATCH(gelu_forward_rows)(args, part);
}

void gelu_backward_part(const GeluBackwardArgs& args, const MatrixPart& part) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_rows)(args, part);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
