// Activation functions, in fp32 with one rounding on store; formulas, NaN and infinity as in activation_cpu.cc.
//
// Bound by memory: each operand is read or written once, 16 bytes at a time. SwiGLU needs rows of a multiple of that.
#include "core/kernels/activation/args.h"

#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

// sigmoid(x) = 1 / (1 + e^-x) and its complement sigmoid(-x) = 1 - sigmoid(x). Both are accurate to a few ulp even
// where they are tiny: e^-|x| never overflows, and nothing is subtracted from 1. NaN gives NaN.
struct SigmoidPair {
  float value, complement;
};

__device__ __forceinline__ SigmoidPair sigmoid(float x) {
  const float e = expf(-fabsf(x));
  const float large = 1.0f / (1.0f + e);
  const float small = e * large;
  return x < 0.0f ? SigmoidPair{small, large} : SigmoidPair{large, small};
}

// The standard normal distribution: cdf(x) = (1 + erf(x / sqrt 2)) / 2 and density(x) = e^(-x^2/2) / sqrt(2 pi).
//
// The tail is Q(a) = 1 - cdf(a) = e^(-a^2/2) g(a), a = |x|; g is a polynomial in t = (a - 3) / (a + 3), the form of
// Shepherd & Laframboise, Math. Comp. 36, 1981. So one exponential serves both functions, and the lower tail keeps its
// relative accuracy where 1 + erf would cancel. core/cpu/simd_math-inl.h has the same polynomial and its error bound.
struct Normal {
  float cdf, density;
};

__device__ __forceinline__ Normal normal(float x) {
  const float a = fabsf(x);
  const float e = expf(x * x * -0.5f);
  const float bounded = a > 15.0f ? 15.0f : a;  // keeps NaN; beyond 15, e is 0
  const float t = (bounded - 3.0f) / (bounded + 3.0f);
  float g = 5.31619596771e-5f;
  g = fmaf(g, t, 1.1501344853e-4f);
  g = fmaf(g, t, -3.39013128003e-4f);
  g = fmaf(g, t, -9.83288017571e-4f);
  g = fmaf(g, t, 2.90438759248e-3f);
  g = fmaf(g, t, 6.13194222595e-3f);
  g = fmaf(g, t, -4.62132636749e-2f);
  g = fmaf(g, t, 1.23225041227e-1f);
  g = fmaf(g, t, -2.06402620407e-1f);
  g = fmaf(g, t, 1.21513947514e-1f);
  const float tail = e * g;
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280401432678f};
}

constexpr float kTwoSqrtTwoOverPi = 1.59576912160573071f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

struct TanhGelu {
  static __device__ __forceinline__ float two_u(float x) { return x * kTwoSqrtTwoOverPi * fmaf(x * x, kCubic, 1.0f); }
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(two_u(x)).value; }
  static __device__ __forceinline__ float derivative(float x) {
    const SigmoidPair s = sigmoid(two_u(x));
    // (2u)' grows like x^2 and must stay finite where s (1 - s) is 0; beyond |x| = 100 it is certainly 0.
    const float bounded = fabsf(x) > 100.0f ? 100.0f : x;
    const float slope = fmaf(bounded * bounded, 3.0f * kCubic * kTwoSqrtTwoOverPi, kTwoSqrtTwoOverPi);
    return fmaf(x, s.value * s.complement * slope, s.value);
  }
};

struct ErfGelu {
  static __device__ __forceinline__ float value(float x) { return x * normal(x).cdf; }
  static __device__ __forceinline__ float derivative(float x) {
    const Normal n = normal(x);
    return fmaf(x, n.density, n.cdf);
  }
};

struct ReluSquared {
  // Not fmaxf, which returns 0 for a NaN.
  static __device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
  static __device__ __forceinline__ float value(float x) { return relu(x) * relu(x); }
  static __device__ __forceinline__ float derivative(float x) { return 2.0f * relu(x); }
};

template <typename Function, typename T>
struct Forward {
  const T* x;
  T* y;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    load<Width>(x + i, values);
#pragma unroll
    for (float& value : values) value = Function::value(value);
    store<Width>(y + i, values);
  }
};

template <typename Function, typename T>
struct Backward {
  const T *x, *dy;
  T* dx;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width], gradients[Width];
    load<Width>(x + i, values);
    load<Width>(dy + i, gradients);
#pragma unroll
    for (int k = 0; k < Width; ++k) gradients[k] *= Function::derivative(values[k]);
    store<Width>(dx + i, gradients);
  }
};

template <typename Function>
void run_forward(const auto& args, CudaStream& stream) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const Forward<Function, T> operation{args.x.template data<T>(), args.y.template data<T>()};
    run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.y), stream);
  });
}

template <typename Function>
void run_backward(const auto& args, CudaStream& stream) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const Backward<Function, T> operation{args.x.template data<T>(), args.dy.template data<T>(),
                                          args.dx.template data<T>()};
    run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.dy, operation.dx),
                                     stream);
  });
}

template <typename T>
struct SwigluForward {
  const T* x;  // (R, 2*F)
  T* y;        // (R, F)
  int64_t features;

  template <int Width>
  __device__ void apply(int64_t row, int64_t column) const {
    const T* gate = x + row * 2 * features + column;
    float g[Width], up[Width];
    load<Width>(gate, g);
    load<Width>(gate + features, up);
#pragma unroll
    for (int k = 0; k < Width; ++k) g[k] = g[k] * sigmoid(g[k]).value * up[k];
    store<Width>(y + row * features + column, g);
  }
};

template <typename T>
struct SwigluBackward {
  const T *x, *dy;  // (R, 2*F), (R, F)
  T* dx;            // (R, 2*F)
  int64_t features;

  template <int Width>
  __device__ void apply(int64_t row, int64_t column) const {
    const int64_t gate = row * 2 * features + column;
    float g[Width], up[Width], d[Width];
    load<Width>(x + gate, g);
    load<Width>(x + gate + features, up);
    load<Width>(dy + row * features + column, d);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const SigmoidPair s = sigmoid(g[k]);
      const float silu = g[k] * s.value;
      g[k] = d[k] * up[k] * fmaf(silu, s.complement, s.value);
      up[k] = d[k] * silu;
    }
    store<Width>(dx + gate, g);
    store<Width>(dx + gate + features, up);
  }
};

}  // namespace

void run(const GeluForwardArgs& args, CudaStream& stream) {
  check_args(args);
  args.form == GeluForm::kTanh ? run_forward<TanhGelu>(args, stream) : run_forward<ErfGelu>(args, stream);
}

void run(const GeluBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  args.form == GeluForm::kTanh ? run_backward<TanhGelu>(args, stream) : run_backward<ErfGelu>(args, stream);
}

void run(const ReluSquaredForwardArgs& args, CudaStream& stream) {
  check_args(args);
  run_forward<ReluSquared>(args, stream);
}

void run(const ReluSquaredBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  run_backward<ReluSquared>(args, stream);
}

void run(const SwigluForwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const SwigluForward<T> operation{args.x.data<T>(), args.y.data<T>(), rows.columns};
    run_rowwise<kVectorWidth<T>>(operation, {rows.rows, rows.columns, alignment_of(operation.x, operation.y)}, stream);
  });
}

void run(const SwigluBackwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const SwigluBackward<T> operation{args.x.data<T>(), args.dy.data<T>(), args.dx.data<T>(), rows.columns};
    const Alignment alignment = alignment_of(operation.x, operation.dy, operation.dx);
    run_rowwise<kVectorWidth<T>>(operation, {rows.rows, rows.columns, alignment}, stream);
  });
}

}  // namespace mantissa::cuda
