// d_token[v] (+)= sum of dy[r] over the rows r whose token is v, in fp32, without atomics: the same bits every time.
//
// Rows are sorted by token, stably (sort_rows.h), and the sorted list is cut into chunks whose length depends on R and
// C only. A warp adds up the rows of one chunk in order, for the columns that its lanes reach; where the token changes
// it stores the sum in that token's row of the table. A chunk that starts in the middle of a token's rows leaves its
// first sum in the workspace instead, and a second kernel adds those sums in the order of the chunks. So rare tokens,
// and one that is all of the text, are equally fast.
//
// Bound by memory: dy is read once, 16 bytes at a time where C is a multiple of that; kWrite first clears the table.
#include "core/kernels/embedding/token_gradient_cuda.h"

#include <algorithm>
#include <bit>

#include "core/cuda/device/device.h"
#include "core/kernels/check_args.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/embedding/sort_rows_cuda.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cuda {
namespace {

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

// Calls body(chunk, column of this lane) for the pieces of work of this warp: chunks by slabs of 32 lanes' columns.
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

// The first of the chunks that start in the middle of one token's rows adds up the sums of all of them.
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
  const int64_t slabs = (gradient.columns + kLanes * Width - 1) / (kLanes * Width);
  const LaunchShape shape{.grid = blocks_for(gradient.chunks * slabs, kWarps, stream), .block = kThreads};
  launch(chunk_sums_kernel<Width, T>, shape, stream.handle(), gradient);
  if (gradient.chunks > 1) launch(add_first_sums_kernel<Width, T>, shape, stream.handle(), gradient);
}

// Rows of a chunk: enough chunks to fill any GPU with warps of 256 columns, few enough that their first sums are little
// beside dy. Not a function of the GPU, so that every GPU adds in the same order.
int64_t chunk_rows_of(const Rows& rows) {
  constexpr int64_t kPieces = 8192, kFewestRows = 32, kMostRows = 1024;
  const int64_t slabs = (rows.columns + 255) / 256;
  const int64_t wanted = std::clamp((rows.rows * slabs + kPieces - 1) / kPieces, kFewestRows, kMostRows);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted)));
}

template <typename T>
void add_token_gradient(const EmbeddingBackwardArgs& args, const Rows& rows, CudaStream& stream) {
  const int64_t vocabulary = args.d_token_table.dim(0), chunk_rows = chunk_rows_of(rows);
  const int64_t chunks = (rows.rows + chunk_rows - 1) / chunk_rows;
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

}  // namespace

void token_gradient(const EmbeddingBackwardArgs& args, CudaStream& stream) {
  const Rows rows = rows_of("embedding backward", "dy", args.dy);
  if (args.token_mode == GradientMode::kWrite) run(FillArgs{.dst = args.d_token_table, .value = 0.0f}, stream);
  if (rows.rows == 0) return;
  dispatch(args.dy.dtype(), [&]<typename T>() { add_token_gradient<T>(args, rows, stream); });
}

}  // namespace mantissa::cuda
