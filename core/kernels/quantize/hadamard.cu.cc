// 16 rows at a time, four columns of them in a thread's registers: butterflies between rows, no exchange with other
// threads. Bound by memory: each operand is read or written once.
#include "core/kernels/quantize/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {
namespace {

constexpr int kLength = static_cast<int>(kHadamardLength);
constexpr int kWidth = 4;  // columns: with more, 16 rows would not fit into registers

template <typename X, typename Y>
struct Hadamard {
  const X* x;
  Y* y;
  int64_t columns;

  // `group`: 16 rows.
  template <int Width>
  __device__ __forceinline__ void apply(int64_t group, int64_t column) const {
    const int64_t begin = group * kLength * columns + column;
    float values[kLength][Width];
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
      load<Width>(x + begin + row * columns, values[row]);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        if (hadamard_negates(row)) values[row][k] = -values[row][k];
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLength; distance *= 2) {
#pragma unroll
      for (int row = 0; row < kLength; ++row) {
        if ((row & distance) != 0) continue;
#pragma unroll
        for (int k = 0; k < Width; ++k) {
          const float a = values[row][k], b = values[row + distance][k];
          values[row][k] = a + b;
          values[row + distance][k] = a - b;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
#pragma unroll
      for (int k = 0; k < Width; ++k) values[row][k] *= 0.25f;
      store<Width>(y + begin + row * columns, values[row]);
    }
  }
};

}  // namespace

void run(const HadamardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const Hadamard<X, Y> operation{args.x.data<X>(), args.y.data<Y>(), rows.columns};
    run_rowwise<kWidth>(
        operation,
        {.rows = rows.rows / kLength, .columns = rows.columns, .alignment = alignment_of(operation.x, operation.y)},
        stream);
  });
}

}  // namespace mantissa::cuda
