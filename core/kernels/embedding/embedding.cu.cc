// y[r] = token_table[tokens[r]] + position_table[r % T], in fp32 with one rounding on store.
//
// Gradients, fp32. Position table: a thread adds its columns of the rows of one position, sequence after sequence.
// Token table: token_gradient.cu.cc.
//
// Bound by memory. Forward: two table rows are read and one is written for each row. Backward: dy is read once for each
// table. 16 bytes at a time where C is a multiple of that.
#include "core/kernels/embedding/args.h"

#include "core/cuda/device/device.h"
#include "core/cuda/device/elementwise.h"
#include "core/kernels/check_args.h"
#include "core/kernels/embedding/token_gradient_cuda.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cuda {
namespace {

template <typename Table, typename Y>
struct EmbeddingForward {
  const int32_t* tokens;
  const Table* token_table;  // (V, C)
  AnyFloats position_table;  // (>= T, C), null for none
  Y* y;                      // (R, C)
  int64_t columns;
  uint32_t sequence_length;

  template <int Width>
  __device__ void apply(int64_t row, int64_t column) const {
    float sum[Width];
    load<Width>(token_table + tokens[row] * columns + column, sum);
    if (position_table.data != nullptr) {
      float position[Width];
      load<Width>(position_table + static_cast<uint32_t>(row) % sequence_length * columns + column, position);
#pragma unroll
      for (int k = 0; k < Width; ++k) sum[k] += position[k];
    }
    store<Width>(y + row * columns + column, sum);
  }
};

template <typename T>
struct PositionGradient {
  const T* dy;        // (R, C)
  float* d_position;  // (P, C)
  int64_t rows, columns, sequence_length;
  GradientMode mode;

  template <int Width>
  __device__ void apply(int64_t position, int64_t column) const {
    float sum[Width] = {};
    if (position < sequence_length) {
#pragma unroll 4
      for (int64_t row = position; row < rows; row += sequence_length) {
        float values[Width];
        load<Width>(dy + row * columns + column, values);
        add_values(values, sum);
      }
    }
    put_gradient(d_position + position * columns + column, sum, mode);
  }
};

}  // namespace

void run(const EmbeddingForwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  const AnyFloats positions = any_floats(args.position_table);
  dispatch(args.token_table.dtype(), [&]<typename Table>() {
    dispatch(args.y.dtype(), [&]<typename Y>() {
      const EmbeddingForward<Table, Y> operation{.tokens = args.tokens.data<int32_t>(),
                                                 .token_table = args.token_table.data<Table>(),
                                                 .position_table = positions,
                                                 .y = args.y.data<Y>(),
                                                 .columns = rows.columns,
                                                 .sequence_length = static_cast<uint32_t>(args.sequence_length)};
      const Alignment alignment = alignment_of(operation.token_table, positions.data, operation.y);
      run_rowwise<kVectorWidth<Table, Y, BFloat16>>(operation, {rows.rows, rows.columns, alignment}, stream);
    });
  });
}

void run(const EmbeddingBackwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  token_gradient(args, stream);
  if (!args.d_position_table.defined()) return;
  dispatch(args.dy.dtype(), [&]<typename T>() {
    const PositionGradient<T> operation{.dy = args.dy.data<T>(),
                                        .d_position = args.d_position_table.data<float>(),
                                        .rows = rows.rows,
                                        .columns = rows.columns,
                                        .sequence_length = args.sequence_length,
                                        .mode = args.position_mode};
    run_rowwise<kVectorWidth<T>>(operation,
                                 {.rows = args.d_position_table.dim(0),
                                  .columns = rows.columns,
                                  .alignment = alignment_of(operation.dy, operation.d_position)},
                                 stream);
  });
}

}  // namespace mantissa::cuda
