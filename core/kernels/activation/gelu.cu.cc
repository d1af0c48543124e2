// Gaussian error linear unit, y = x Phi(x), in fp32 with one rounding on store.
//
// kTanh: y = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 = sigmoid(2u):
//   y = x s,  y' = s + x s (1 - s) (2u)',  s = sigmoid(2u): no cancellation where s is tiny.
// kErf: y = x cdf(x),  y' = cdf(x) + x density(x), of the standard normal distribution.
// As in PyTorch, y(-Inf) = y'(+-Inf) = NaN: an overflow upstream does not turn into an innocent 0.
//
// Bound by memory: each operand is read or written once, 16 bytes at a time.
// Source: Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016.
#include "core/kernels/activation/args.h"

#include "core/cuda/device/activation.h"
#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

constexpr float kTwoSqrtTwoOverPi = 1.59576912160573071f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

struct TanhForm {
  static __device__ __forceinline__ float two_u(float x) { return x * kTwoSqrtTwoOverPi * fmaf(x * x, kCubic, 1.0f); }
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(two_u(x)).value; }
  static __device__ __forceinline__ float derivative(float x) {
    const SigmoidPair s = sigmoid(two_u(x));
    // (2u)' grows like x^2 and must stay finite where s (1 - s) is 0; beyond |x| = 100 it is 0 for certain.
    const float bounded = fabsf(x) > 100.0f ? 100.0f : x;
    const float slope = fmaf(bounded * bounded, 3.0f * kCubic * kTwoSqrtTwoOverPi, kTwoSqrtTwoOverPi);
    return fmaf(x, s.value * s.complement * slope, s.value);
  }
};

struct ErfForm {
  static __device__ __forceinline__ float value(float x) { return x * normal(x).cdf; }
  static __device__ __forceinline__ float derivative(float x) {
    const Normal n = normal(x);
    return fmaf(x, n.density, n.cdf);
  }
};

template <typename Form, typename T>
struct GeluForward {
  const T* x;
  T* y;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width];
    load<Width>(x + i, values);
#pragma unroll
    for (float& value : values) value = Form::value(value);
    store<Width>(y + i, values);
  }
};

template <typename Form, typename T>
struct GeluBackward {
  const T *x, *dy;
  T* dx;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float values[Width], gradients[Width];
    load<Width>(x + i, values);
    load<Width>(dy + i, gradients);
#pragma unroll
    for (int k = 0; k < Width; ++k) gradients[k] *= Form::derivative(values[k]);
    store<Width>(dx + i, gradients);
  }
};

template <typename F>
void dispatch_form(GeluForm form, F&& f) {
  switch (form) {
    case GeluForm::kTanh:
      return f.template operator()<TanhForm>();
    case GeluForm::kErf:
      return f.template operator()<ErfForm>();
  }
}

}  // namespace

void run(const GeluForwardArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch_form(args.form, [&]<typename Form>() {
    dispatch(args.x.dtype(), [&]<typename T>() {
      const GeluForward<Form, T> operation{args.x.data<T>(), args.y.data<T>()};
      run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.y), stream);
    });
  });
}

void run(const GeluBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch_form(args.form, [&]<typename Form>() {
    dispatch(args.x.dtype(), [&]<typename T>() {
      const GeluBackward<Form, T> operation{args.x.data<T>(), args.dy.data<T>(), args.dx.data<T>()};
      run_elementwise<kVectorWidth<T>>(operation, args.x.numel(), alignment_of(operation.x, operation.dy, operation.dx),
                                       stream);
    });
  });
}

}  // namespace mantissa::cuda
