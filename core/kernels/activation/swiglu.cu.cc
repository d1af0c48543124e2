// Gated linear unit; x holds gate and up side by side in each row. In fp32, one rounding on store.
//   y = silu(gate) up,  silu(g) = g s,  s = sigmoid(g)
//   d_up = dy silu(g),  d_gate = dy up (s + g s (1 - s))
//
// Bound by memory: each operand is read or written once, 16 bytes at a time where F is a multiple of that.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
#include "core/kernels/activation/args.h"

#include "core/cuda/device/activation.h"
#include "core/cuda/device/rowwise.h"
#include "core/kernels/check_args.h"

namespace mantissa::cuda {
namespace {

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
