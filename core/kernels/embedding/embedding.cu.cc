// Embedding and rotary position embedding. Token gradients are in token_gradient.cu.cc. Bound by memory: 16 bytes at a
// time where C, or D/2, is a multiple of that.
#include <algorithm>
#include <array>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/documents.h"
#include "core/kernels/embedding/args.h"

namespace mantissa::cuda {
namespace {

// ---- y[r] = token_table[tokens[r]] + position_table[position], in fp32 with one rounding on store. Two table rows are
// read and one is written for each row.
//
// Gradient of the position table, fp32: a thread adds its columns of the rows of one position, sequence after sequence
// and document after document: without atomics, the same bits every time.

template <typename Table, typename Y>
struct EmbeddingForward {
  const int32_t* tokens;
  const int32_t* starts;     // (R), null for none
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
      const uint32_t start = starts == nullptr ? 0 : static_cast<uint32_t>(starts[row]);
      load<Width>(position_table + (static_cast<uint32_t>(row) % sequence_length - start) * columns + column, position);
#pragma unroll
      for (int k = 0; k < Width; ++k) sum[k] += position[k];
    }
    store<Width>(y + row * columns + column, sum);
  }
};

template <typename T>
struct PositionGradient {
  const T* dy;            // (R, C)
  const int32_t* starts;  // (R), null for none
  float* d_position;      // (P, C)
  int64_t rows, columns, sequence_length;
  GradientMode mode;

  template <int Width>
  __device__ void apply(int64_t position, int64_t column) const {
    float sum[Width] = {};
    const auto add_row = [&](int64_t row) {
      float values[Width];
      load<Width>(dy + row * columns + column, values);
      add_values(values, sum);
    };
    if (position < sequence_length && starts == nullptr) {
#pragma unroll 4
      for (int64_t row = position; row < rows; row += sequence_length) add_row(row);
    } else {
      for (int64_t first = 0; first < rows; first += sequence_length) {
        for (int64_t t = position; t < sequence_length;) {
          const int64_t start = starts[first + t];
          if (t - start == position) add_row(first + t);
          // A later document begins after t, where this one reaches t.
          t = t - start < position ? start + position : t + 1 + position;
        }
      }
    }
    put_gradient(d_position + position * columns + column, sum, mode);
  }
};

// ---- RoPE: each pair (a, b) becomes (a cos - b sin, b cos + a sin), in fp32 with one rounding on store.
//
// A block processes a few rows at a time. Its threads first compute the D/2 angles of each row into shared memory, once
// for all heads, then rotate the heads. Angles are computed in double, because an fp32 angle is wrong by 4e-3 at
// position 1e5. These 30 or so operations for each row and pair are hidden by the memory traffic: x is read once and y
// written once.

constexpr unsigned kThreads = 256;
constexpr int64_t kMostPairs = 256;  // of a head

// By pair, in quarters of a circle per position.
using Frequencies = std::array<double, kMostPairs>;

template <typename T>
struct Rope {
  const T* x;             // (R, columns)
  const int32_t* starts;  // (R), null for none
  T* y;
  int64_t rows, columns, sequence_length;
  unsigned half;             // D/2
  unsigned rotated_columns;  // the first ones of a row
  unsigned copied_columns;   // the others, or 0 in place
  unsigned rows_at_once;
  float sign;  // -1 turns back
};

struct Turn {
  float cosine, sine;
};

constexpr double kPi = 3.14159265358979324;

// The sine and cosine of an angle in quarter turns, which is reduced to [-pi/4, pi/4] with negligible rounding. There,
// Taylor polynomials are exact to a small part of an fp32 ulp: their first omitted term is below 2e-9.
__device__ __forceinline__ Turn turn_of(double quarters) {
  const double whole = rint(quarters);
  const double r = (quarters - whole) * (kPi / 2.0), square = r * r;
  double sine = fma(square, 1.0 / 362880.0, -1.0 / 5040.0);
  sine = fma(square, sine, 1.0 / 120.0);
  sine = fma(square, sine, -1.0 / 6.0);
  sine = fma(square * r, sine, r);
  double cosine = fma(square, -1.0 / 3628800.0, 1.0 / 40320.0);
  cosine = fma(square, cosine, -1.0 / 720.0);
  cosine = fma(square, cosine, 1.0 / 24.0);
  cosine = fma(square, cosine, -0.5);
  cosine = fma(square, cosine, 1.0);
  const int64_t quadrant = static_cast<int64_t>(whole) & 3;
  const bool swapped = (quadrant & 1) != 0;
  const float c = static_cast<float>(swapped ? sine : cosine), s = static_cast<float>(swapped ? cosine : sine);
  return {quadrant == 1 || quadrant == 2 ? -c : c, quadrant >= 2 ? -s : s};
}

template <int Width, typename T>
__device__ __forceinline__ void rotate(const T* x, T* y, unsigned half, const float* cosine, const float* sine) {
  float a[Width], b[Width], c[Width], s[Width];
  load<Width>(x, a);
  load<Width>(x + half, b);
  load<Width>(cosine, c);
  load<Width>(sine, s);
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    const float turned = fmaf(-b[k], s[k], a[k] * c[k]);
    b[k] = fmaf(a[k], s[k], b[k] * c[k]);
    a[k] = turned;
  }
  store<Width>(y, a);
  store<Width>(y + half, b);
}

template <int Width, typename T>
__global__ void rope_kernel(Rope<T> rope, Frequencies frequencies) {
  float* const cosines = shared_memory<float>();  // (rows_at_once, half)
  float* const sines = cosines + rope.rows_at_once * rope.half;
  const unsigned pairs = rope.rotated_columns / 2 / Width, copies = rope.copied_columns / Width;  // of a row
  const unsigned pairs_of_head = rope.half / Width;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * rope.rows_at_once;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rope.rows_at_once; first < rope.rows; first += row_step) {
    const unsigned count = static_cast<unsigned>(std::min<int64_t>(rope.rows_at_once, rope.rows - first));
    for (unsigned i = threadIdx.x; pairs > 0 && i < count * rope.half; i += blockDim.x) {
      const int64_t position = position_in_document(rope.starts, first + i / rope.half, rope.sequence_length);
      const Turn turn = turn_of(static_cast<double>(position) * frequencies[i % rope.half]);
      cosines[i] = turn.cosine;
      sines[i] = turn.sine * rope.sign;
    }
    __syncthreads();
    const T* const x = rope.x + first * rope.columns;
    T* const y = rope.y + first * rope.columns;
    for (unsigned task = threadIdx.x; task < count * pairs; task += blockDim.x) {
      const unsigned row = task / pairs, head = task % pairs / pairs_of_head;
      const unsigned i = task % pairs % pairs_of_head * Width;
      const int64_t at = row * rope.columns + head * 2 * rope.half + i;
      rotate<Width>(x + at, y + at, rope.half, cosines + row * rope.half + i, sines + row * rope.half + i);
    }
    for (unsigned task = threadIdx.x; task < count * copies; task += blockDim.x) {
      const int64_t at = task / copies * rope.columns + rope.rotated_columns + task % copies * Width;
      using Bits = Vector<T, Width>;  // as they are: a NaN keeps its payload
      *reinterpret_cast<Bits*>(y + at) = *reinterpret_cast<const Bits*>(x + at);
    }
    __syncthreads();
  }
}

template <int Width, typename T>
void run(Rope<T> rope, const Frequencies& frequencies, CudaStream& stream) {
  // Rows of few heads are processed together: two tasks for each thread are worth the two barriers.
  constexpr unsigned kTasksAtOnce = 2 * kThreads, kMostRowsAtOnce = 16;
  const unsigned tasks = (rope.rotated_columns / 2 + rope.copied_columns) / Width;
  if (rope.rows == 0 || tasks == 0) return;
  rope.rows_at_once = std::clamp(kTasksAtOnce / tasks, 1u, kMostRowsAtOnce);
  const size_t shared_bytes = size_t{2} * rope.rows_at_once * rope.half * sizeof(float);
  launch(rope_kernel<Width, T>,
         {.grid = blocks_for(rope.rows, rope.rows_at_once, stream), .block = kThreads, .shared_bytes = shared_bytes},
         stream.handle(), rope, frequencies);
}

}  // namespace

void run(const EmbeddingForwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  const AnyFloats positions = any_floats(args.position_table);
  dispatch(args.token_table.dtype(), args.y.dtype(), [&]<typename Table, typename Y>() {
    const EmbeddingForward<Table, Y> operation{.tokens = args.tokens.data<int32_t>(),
                                               .starts = data_or_null<int32_t>(args.starts),
                                               .token_table = args.token_table.data<Table>(),
                                               .position_table = positions,
                                               .y = args.y.data<Y>(),
                                               .columns = rows.columns,
                                               .sequence_length = static_cast<uint32_t>(args.sequence_length)};
    const Alignment alignment = alignment_of(operation.token_table, positions.data, operation.y);
    run_rowwise<kVectorWidth<Table, Y, BFloat16>>(operation, {rows.rows, rows.columns, alignment}, stream);
  });
}

void run(const EmbeddingBackwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  token_gradient(args, rows, stream);
  if (!args.d_position_table.defined()) return;
  dispatch(args.dy.dtype(), [&]<typename T>() {
    const PositionGradient<T> operation{.dy = args.dy.data<T>(),
                                        .starts = data_or_null<int32_t>(args.starts),
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

void run(const RopeArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  MANTISSA_CHECK(args.head_dim <= 2 * kMostPairs, "[rope] head_dim must be at most {} on a GPU, got {}", 2 * kMostPairs,
                 args.head_dim);
  const int64_t rotated_columns = args.rotated_heads * args.head_dim;
  const bool in_place = args.x.raw() == args.y.raw();
  Frequencies frequencies{};
  for (int64_t pair = 0; pair < args.head_dim / 2; ++pair) {
    frequencies[static_cast<size_t>(pair)] = args.frequencies.of_pair(pair, args.head_dim) * (2.0 / kPi);
  }
  dispatch(args.x.dtype(), [&]<typename T>() {
    constexpr int kWidth = kVectorWidth<T>;
    const Rope<T> operands{.x = args.x.data<T>(),
                           .starts = data_or_null<int32_t>(args.starts),
                           .y = args.y.data<T>(),
                           .rows = rows.rows,
                           .columns = rows.columns,
                           .sequence_length = args.sequence_length,
                           .half = static_cast<unsigned>(args.head_dim / 2),
                           .rotated_columns = static_cast<unsigned>(rotated_columns),
                           .copied_columns = in_place ? 0u : static_cast<unsigned>(rows.columns - rotated_columns),
                           .rows_at_once = 1,
                           .sign = args.rotation == Rotation::kForward ? 1.0f : -1.0f};
    if (args.head_dim / 2 % kWidth == 0 && all_aligned(operands.x, operands.y))
      return run<kWidth>(operands, frequencies, stream);
    run<1>(operands, frequencies, stream);
  });
}

}  // namespace mantissa::cuda
