// y[r] = token_table[tokens[r]] + position_table[position], in fp32 with one rounding on store.
//
// Gradients, fp32, without atomics: the same bits every time. Position table: a thread adds its columns of the rows of
// one position, sequence after sequence and document after document.
//
// Token table: d_token[v] (+)= sum of dy[r] over the rows r whose token is v. Rows are sorted by token, stably
// (sort_rows_cuda.h), and the sorted list is cut into chunks whose length depends on R and C only. A warp adds up the
// rows of one chunk in order, for the columns of its lanes; where the token changes it stores the sum in that token's
// row of the table. A chunk that starts in the middle of a token's rows leaves its first sum in the workspace instead,
// and a second kernel adds those sums in the order of the chunks. So rare tokens, and a token that is all of the text,
// are equally fast.
//
// Bound by memory. Forward: two table rows are read and one is written for each row. Backward: dy is read once for each
// table; kWrite first clears the token table. 16 bytes at a time where C is a multiple of that.
#include <algorithm>
#include <bit>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/documents.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/embedding/sort_rows_cuda.h"

namespace mantissa::cuda {
namespace {

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

constexpr unsigned kThreads = 256, kWarps = kThreads / kLanes;

template <typename T>
struct TokenGradient {
  const KeyedRow* sorted;  // (R)
  const T* dy;             // (R, C)
  float* d_token;          // (V, C)
  float* first_sums;       // (chunks, C): of the tokens that chunks start in the middle of
  int64_t rows, columns, chunk_rows, chunks;
  GradientMode mode;
};

// Calls body(chunk, column of this lane) for this warp's pieces of work: chunks by slabs of 32 lanes' columns.
template <int Width, typename T, typename Body>
__device__ __forceinline__ void for_each_piece(const TokenGradient<T>& g, Body&& body) {
  const int64_t lane = threadIdx.x % kLanes;
  const int64_t slabs = (g.columns + kLanes * Width - 1) / (kLanes * Width);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t piece = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes; piece < g.chunks * slabs;
       piece += warps) {
    body(piece / slabs, (piece % slabs * kLanes + lane) * Width);
  }
}

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads, 2) chunk_sums_kernel(TokenGradient<T> g) {
  constexpr int kAtOnce = 4;  // rows of which the loads are under way together
  for_each_piece<Width>(g, [&](int64_t chunk, int64_t column) {
    const int64_t begin = chunk * g.chunk_rows, end = std::min(g.rows, begin + g.chunk_rows);
    const bool inside = column < g.columns;
    uint32_t token = g.sorted[begin].key;
    bool started_before = begin > 0 && g.sorted[begin - 1].key == token;
    float sum[Width] = {};
    const auto finish = [&] {
      if (!inside) return;
      if (started_before) {
        store<Width>(g.first_sums + chunk * g.columns + column, sum);
      } else {
        put_gradient(g.d_token + token * g.columns + column, sum, g.mode);
      }
    };
    for (int64_t base = begin; base < end; base += kLanes) {
      const int count = static_cast<int>(std::min<int64_t>(kLanes, end - base));
      const int lane = static_cast<int>(threadIdx.x % kLanes);
      const KeyedRow own = lane < count ? g.sorted[base + lane] : KeyedRow{};
      for (int first = 0; first < count; first += kAtOnce) {
        float values[kAtOnce][Width];
        uint32_t tokens[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          tokens[k] = __shfl_sync(kAllLanes, own.key, first + k);
          const int64_t row = __shfl_sync(kAllLanes, own.row, first + k);
          if (inside && first + k < count) load<Width>(g.dy + row * g.columns + column, values[k]);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (first + k >= count) break;
          if (tokens[k] != token) {
            finish();
            token = tokens[k];
            started_before = false;
#pragma unroll
            for (float& element : sum) element = 0.0f;
          }
          if (inside) add_values(values[k], sum);
        }
      }
    }
    finish();
  });
}

// The first chunk that starts in the middle of a token's rows adds up the sums of all such chunks.
template <int Width, typename T>
__global__ void __launch_bounds__(kThreads) add_first_sums_kernel(TokenGradient<T> g) {
  for_each_piece<Width>(g, [&](int64_t chunk, int64_t column) {
    const uint32_t token = g.sorted[chunk * g.chunk_rows].key;
    const auto starts_within = [&](int64_t other) {  // other > 0, and no chunk between starts with another token
      return g.sorted[other * g.chunk_rows - 1].key == token && g.sorted[other * g.chunk_rows].key == token;
    };
    if (chunk == 0 || !starts_within(chunk) || (chunk > 1 && starts_within(chunk - 1))) return;
    const bool inside = column < g.columns;
    float sum[Width] = {};
    for (int64_t base = chunk; base < g.chunks; base += kLanes) {
      const int64_t other = base + threadIdx.x % kLanes;
      const unsigned others = __ballot_sync(kAllLanes, other < g.chunks && starts_within(other));
      const int count = others == kAllLanes ? kLanes : __ffs(static_cast<int>(~others)) - 1;
      if (inside) {
#pragma unroll 4
        for (int k = 0; k < count; ++k) {
          float values[Width];
          load<Width>(g.first_sums + (base + k) * g.columns + column, values);
          add_values(values, sum);
        }
      }
      if (count < kLanes) break;
    }
    if (inside) put_gradient(g.d_token + token * g.columns + column, sum, GradientMode::kAccumulate);
  });
}

template <int Width, typename T>
void run_token_gradient(const TokenGradient<T>& gradient, CudaStream& stream) {
  const int64_t slabs = divide_up(gradient.columns, kLanes * Width);
  const LaunchShape shape{.grid = blocks_for(gradient.chunks * slabs, kWarps, stream), .block = kThreads};
  launch(chunk_sums_kernel<Width, T>, shape, stream.handle(), gradient);
  if (gradient.chunks > 1) launch(add_first_sums_kernel<Width, T>, shape, stream.handle(), gradient);
}

// Rows of a chunk. There are enough chunks to fill any GPU with warps of 256 columns, and few enough that their first
// sums are small compared with dy. Does not depend on the GPU, so that every GPU adds in the same order.
int64_t chunk_rows_of(const Rows& rows) {
  constexpr int64_t kPieces = 8192, kFewestRows = 32, kMostRows = 1024;
  const int64_t slabs = divide_up(rows.columns, 256);
  const int64_t wanted = std::clamp(divide_up(rows.rows * slabs, kPieces), kFewestRows, kMostRows);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted)));
}

template <typename T>
void add_token_gradient(const EmbeddingBackwardArgs& args, const Rows& rows, CudaStream& stream) {
  const int64_t vocabulary = args.d_token_table.dim(0), chunk_rows = chunk_rows_of(rows);
  const int64_t chunks = divide_up(rows.rows, chunk_rows);
  const size_t sort_bytes = sort_rows_bytes(rows.rows, vocabulary);
  std::byte* const workspace =
      stream.workspace(sort_bytes + static_cast<size_t>(chunks * rows.columns) * sizeof(float));
  const KeyedRow* const sorted = sort_rows(
      {.keys = args.tokens.data<int32_t>(), .rows = rows.rows, .key_limit = vocabulary, .workspace = workspace},
      stream);
  const TokenGradient<T> gradient{.sorted = sorted,
                                  .dy = args.dy.data<T>(),
                                  .d_token = args.d_token_table.data<float>(),
                                  .first_sums = reinterpret_cast<float*>(workspace + sort_bytes),
                                  .rows = rows.rows,
                                  .columns = rows.columns,
                                  .chunk_rows = chunk_rows,
                                  .chunks = chunks,
                                  .mode = args.token_mode};
  constexpr int kWidth = kVectorWidth<T>;
  if (rows.columns % kWidth == 0 && all_aligned(gradient.dy, gradient.d_token)) {
    run_token_gradient<kWidth>(gradient, stream);
  } else {
    run_token_gradient<1>(gradient, stream);
  }
}

void token_gradient(const EmbeddingBackwardArgs& args, const Rows& rows, CudaStream& stream) {
  if (args.token_mode == GradientMode::kWrite) run(FillArgs{.dst = args.d_token_table, .value = 0.0f}, stream);
  if (rows.rows == 0) return;
  dispatch(args.dy.dtype(), [&]<typename T>() { add_token_gradient<T>(args, rows, stream); });
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

}  // namespace mantissa::cuda
