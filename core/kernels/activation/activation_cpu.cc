// Activation functions, in fp32 with one rounding on store. GELU is y = x Phi(x).
//
// GELU, kTanh: y = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 = sigmoid(2u):
//   y = x s,  y' = s + x s (1 - s) (2u)',  s = sigmoid(2u): no cancellation where s is tiny.
// GELU, kErf: y = x cdf(x),  y' = cdf(x) + x density(x), of the standard normal distribution.
// As in PyTorch, y(-Inf) = y'(+-Inf) = NaN: an overflow does not become 0.
// ReLU^2: y = r^2, y' = 2r, r = max(x, 0). A NaN of x or dy stays one, as does an infinity of dy at x <= 0: inf * 0 is
// NaN, so an overflow does not disappear.
// SwiGLU; x holds gate and up side by side in each row:
//   y = silu(gate) up,  silu(g) = g s,  s = sigmoid(g);  d_up = dy silu(g),  d_gate = dy up (s + g s (1 - s))
//
// Sources: Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016; Shazeer, "GLU Variants Improve Transformer", 2020.
#include "core/kernels/activation/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation/activation_cpu.cc"
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

struct TanhGelu {
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

struct ErfGelu {
  static HWY_INLINE FloatVec value(FloatVec x) { return hn::Mul(x, normal(x).cdf); }
  static HWY_INLINE FloatVec derivative(FloatVec x) {
    const Normal n = normal(x);
    return hn::MulAdd(x, n.density, n.cdf);
  }
};

struct ReluSquared {
  // Not hn::Max, which may return 0 for a NaN.
  static HWY_INLINE FloatVec relu(FloatVec x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(FloatTag())), x); }
  static HWY_INLINE FloatVec value(FloatVec x) { return hn::Mul(relu(x), relu(x)); }
  static HWY_INLINE FloatVec derivative(FloatVec x) { return hn::Add(relu(x), relu(x)); }
};

template <class Function, typename T>
void forward_block(const T* x, T* y, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count)
                         MANTISSA_VECTOR_LAMBDA { store(Function::value(load(x + i, count)), y + i, count); });
}

template <class Function, typename T>
void backward_block(const T* x, const T* dy, T* dx, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Mul(load(dy + i, count), Function::derivative(load(x + i, count))), dx + i, count);
  });
}

// Functions that no field of their arguments chooses: by both of their argument structs.
template <typename Args>
struct FunctionOf;
template <>
struct FunctionOf<ReluSquaredForwardArgs> : ReluSquared {};
template <>
struct FunctionOf<ReluSquaredBackwardArgs> : ReluSquared {};

// Calls body with the activation function and the element type as template arguments.
template <typename Args, typename Body>
void dispatch_function(const Args& args, const Body& body) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    if constexpr (!requires { args.form; }) {
      body.template operator()<FunctionOf<Args>, T>();
    } else if (args.form == GeluForm::kTanh) {
      body.template operator()<TanhGelu, T>();
    } else {
      body.template operator()<ErfGelu, T>();
    }
  });
}

template <typename Args>
void forward_kernel(const Args& args) {
  dispatch_function(args, [&]<class Function, typename T>() {
    const T* x = args.x.template data<T>();
    T* y = args.y.template data<T>();
    parallel_blocks(args.x.numel(),
                    [&](int64_t begin, int64_t count) { forward_block<Function>(x + begin, y + begin, count); });
  });
}

template <typename Args>
void backward_kernel(const Args& args) {
  dispatch_function(args, [&]<class Function, typename T>() {
    const T* x = args.x.template data<T>();
    const T* dy = args.dy.template data<T>();
    T* dx = args.dx.template data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t count) {
      backward_block<Function>(x + begin, dy + begin, dx + begin, count);
    });
  });
}

void gelu_forward_kernel(const GeluForwardArgs& args) { forward_kernel(args); }
void gelu_backward_kernel(const GeluBackwardArgs& args) { backward_kernel(args); }
void relu_squared_forward_kernel(const ReluSquaredForwardArgs& args) { forward_kernel(args); }
void relu_squared_backward_kernel(const ReluSquaredBackwardArgs& args) { backward_kernel(args); }

// Calls body(begin) for each row of the part: the index of its first element.
template <typename Body>
void for_each_row(const Tensor& x, const MatrixPart& part, const Body& body) {
  for (int64_t row = part.row; row < part.row + part.rows; ++row) body(row * x.shape().last() + part.column);
}

void gelu_forward_rows(const GeluForwardArgs& args, const MatrixPart& part) {
  dispatch_function(args, [&]<class Function, typename T>() {
    for_each_row(args.x, part, [&](int64_t at) {
      forward_block<Function>(args.x.data<T>() + at, args.y.data<T>() + at, part.columns);
    });
  });
}

void gelu_backward_rows(const GeluBackwardArgs& args, const MatrixPart& part) {
  dispatch_function(args, [&]<class Function, typename T>() {
    for_each_row(args.x, part, [&](int64_t at) {
      backward_block<Function>(args.x.data<T>() + at, args.dy.data<T>() + at, args.dx.data<T>() + at, part.columns);
    });
  });
}

void swiglu_forward_kernel(const SwigluForwardArgs& args) {
  const int64_t features = args.y.shape().last();
  dispatch(args.x.dtype(), [&]<typename T>() {
    parallel_rows(args.y.numel() / features, features, [&](int64_t row) {
      const T *gate = args.x.data<T>() + row * 2 * features, *up = gate + features;
      T* y = args.y.data<T>() + row * features;
      for_each_vector(features, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto g = load(gate + i, count);
        store(hn::Mul(hn::Mul(g, sigmoid(g).value), load(up + i, count)), y + i, count);
      });
    });
  });
}

void swiglu_backward_kernel(const SwigluBackwardArgs& args) {
  const int64_t features = args.dy.shape().last();
  dispatch(args.x.dtype(), [&]<typename T>() {
    parallel_rows(args.dy.numel() / features, features, [&](int64_t row) {
      const T *gate = args.x.data<T>() + row * 2 * features, *up = gate + features;
      const T* dy = args.dy.data<T>() + row * features;
      T *d_gate = args.dx.data<T>() + row * 2 * features, *d_up = d_gate + features;
      for_each_vector(features, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto g = load(gate + i, count), u = load(up + i, count), d = load(dy + i, count);
        const auto s = sigmoid(g);
        const auto silu = hn::Mul(g, s.value);
        store(hn::Mul(d, silu), d_up + i, count);
        store(hn::Mul(hn::Mul(d, u), hn::MulAdd(silu, s.complement, s.value)), d_gate + i, count);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

MANTISSA_RUN_KERNEL(GeluForwardArgs, gelu_forward_kernel)
MANTISSA_RUN_KERNEL(GeluBackwardArgs, gelu_backward_kernel)
MANTISSA_RUN_KERNEL(ReluSquaredForwardArgs, relu_squared_forward_kernel)
MANTISSA_RUN_KERNEL(ReluSquaredBackwardArgs, relu_squared_backward_kernel)
MANTISSA_RUN_KERNEL(SwigluForwardArgs, swiglu_forward_kernel)
MANTISSA_RUN_KERNEL(SwigluBackwardArgs, swiglu_backward_kernel)

HWY_EXPORT(gelu_forward_rows);
HWY_EXPORT(gelu_backward_rows);

void gelu_forward_part(const GeluForwardArgs& args, const MatrixPart& part) {
  HWY_DYNAMIC_DISPATCH(gelu_forward_rows)(args, part);
}

void gelu_backward_part(const GeluBackwardArgs& args, const MatrixPart& part) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_rows)(args, part);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
