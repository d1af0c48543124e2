// Layer and RMS norm; formulas and sources as in norm_cpu.cc. Bound by memory.
#include <utility>

#include "core/kernels/norm/norm_row_cuda.h"
#include "core/kernels/reduction/partial_sums_cuda.h"

namespace mantissa::cuda {
namespace {

// ---- Forward pass, of x or of x + residual: a row is read once, into the registers of the warp or block that works on
// it: mean first, then the variance of the row that is already in registers. sum and y are written once; weight and
// bias come from the caches.

// X and Y: T* or AnyFloats.
template <typename X, typename Y>
struct NormForward {
  X x;
  Y y;
  AnyFloats weight, bias;
  float* mean;  // not used by kRms
  float* rstd;
  int64_t rows, columns;
  HeadRange heads;
  float epsilon;
};

// The addend of a row before it is normalised.
struct NoResidual {
  template <typename Row>
  __device__ __forceinline__ void add_to(Row&, int64_t) const {}
};

// A residual, and where the sum goes. R, S: T* or AnyFloats.
template <typename R, typename S>
struct Residual {
  R residual;
  S sum;

  // `first`: the row's first element.
  template <typename Row>
  __device__ __forceinline__ void add_to(Row& row, int64_t first) const {
    row.add(residual + first, sum + first);
  }
};

constexpr int kForwardColumnsPerThread = 32;
constexpr int kMaxForwardThreads = 512;  // leaves 128 registers for each

// Row: how a thread holds its part of x. block (threads of a row, rows at a time).
template <Norm kNorm, int Width, typename Row, typename X, typename Y, typename Addend>
__global__ void __launch_bounds__(kMaxForwardThreads) norm_forward_kernel(NormForward<X, Y> p, Addend addend) {
  RowTeam<1> team(shared_memory<float>());
  const float columns = static_cast<float>(p.columns);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; index < p.rows; index += stride) {
    const int64_t first = p.heads.row(index) * p.columns;
    Row x(p.x + first, p.columns);
    addend.add_to(x, first);
    float mean = 0.0f;
    if constexpr (kNorm == Norm::kLayer) {
      float sum[1] = {};
      x.for_each([&](int64_t, const float(&values)[Width]) {
#pragma unroll
        for (int i = 0; i < Width; ++i) sum[0] += values[i];
      });
      team.sum(sum);
      mean = sum[0] / columns;
    }
    float squares[1] = {};
    x.for_each([&](int64_t, const float(&values)[Width]) {
#pragma unroll
      for (int i = 0; i < Width; ++i) squares[0] += (values[i] - mean) * (values[i] - mean);
    });
    team.sum(squares);
    const float rstd = rsqrtf(squares[0] / columns + p.epsilon);
    if (threadIdx.x == 0) {
      if constexpr (kNorm == Norm::kLayer) p.mean[index] = mean;
      p.rstd[index] = rstd;
    }
    x.for_each([&](int64_t column, const float(&values)[Width]) {
      float weight[Width], bias[Width] = {}, y[Width];
      load<Width>(p.weight + column, weight);
      if (kNorm == Norm::kLayer && p.bias.data != nullptr) load<Width>(p.bias + column, bias);
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        const float scaled = (values[i] - mean) * rstd * weight[i];
        y[i] = kNorm == Norm::kLayer ? scaled + bias[i] : scaled;
      }
      store<Width>(p.y + first + column, y);
    });
  }
}

// X and Y: the elements, or AnyFloats.
template <Norm kNorm, int Width, typename Row, typename X, typename Y, typename Addend>
void launch_norm_forward(const LayerNormForwardArgs& args, const Rows& rows, const Addend& addend, CudaStream& stream) {
  using XOperand = OperandOf<X>;
  using YOperand = OperandOf<Y>;
  const NormForward<typename XOperand::Type, typename YOperand::Type> p{.x = XOperand::of(args.x),
                                                                        .y = YOperand::of(args.y),
                                                                        .weight = any_floats(args.weight),
                                                                        .bias = any_floats(args.bias),
                                                                        .mean = data_or_null<float>(args.mean),
                                                                        .rstd = args.rstd.data<float>(),
                                                                        .rows = rows.rows,
                                                                        .columns = rows.columns,
                                                                        .heads = args.heads,
                                                                        .epsilon = args.epsilon};
  constexpr unsigned kWarpsPerBlock = 4;
  constexpr int kThreadsPerMultiprocessor = 2048;
  const unsigned threads = team_threads(rows.columns, kForwardColumnsPerThread, kMaxForwardThreads);
  const dim3 block(threads, threads == kLanes ? kWarpsPerBlock : 1);
  const int blocks_per_multiprocessor = kThreadsPerMultiprocessor / static_cast<int>(block.x * block.y);
  launch(norm_forward_kernel<kNorm, Width, Row, typename XOperand::Type, typename YOperand::Type, Addend>,
         {.grid = blocks_for(rows.rows, block.y, stream, blocks_per_multiprocessor),
          .block = block,
          .shared_bytes = RowTeam<1>::scratch_bytes(threads)},
         stream.handle(), p, addend);
}

template <typename X, int Width>
using ForwardRow = RowInRegisters<X*, Width, kForwardColumnsPerThread / Width>;

// Whether rows fit into registers and all given operands allow vectors of `width`.
bool is_read_once(const LayerNormForwardArgs& args, const Rows& rows, int width) {
  constexpr int64_t kMaxColumns = int64_t{kMaxForwardThreads} * kForwardColumnsPerThread;
  return rows.columns % width == 0 && rows.columns <= kMaxColumns &&
         all_aligned(args.x.raw(), raw_or_null(args.residual), raw_or_null(args.sum), args.y.raw(), args.weight.raw(),
                     raw_or_null(args.bias));
}

template <Norm kNorm>
void run_plain_norm_forward(const LayerNormForwardArgs& args, const Rows& rows, CudaStream& stream) {
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    constexpr int kWidth = kVectorWidth<X, Y>;
    if (is_read_once(args, rows, kWidth)) {
      launch_norm_forward<kNorm, kWidth, ForwardRow<X, kWidth>, X, Y>(args, rows, NoResidual{}, stream);
    } else {
      launch_norm_forward<kNorm, 1, RowInMemory, AnyFloats, AnyFloats>(args, rows, NoResidual{}, stream);
    }
  });
}

// Fast where the sum has the dtype of one addend, as in a residual stream. Vectors are as wide as when the sum is
// normalised without a residual: the same order of additions, the same bits.
template <Norm kNorm>
void run_sum_norm_forward(LayerNormForwardArgs args, const Rows& rows, CudaStream& stream) {
  if (args.x.dtype() != args.sum.dtype()) std::swap(args.x, args.residual);
  dispatch(args.x.dtype(), args.residual.dtype(), args.y.dtype(), [&]<typename X, typename R, typename Y>() {
    constexpr int kWidth = kVectorWidth<X, Y>;
    if (args.sum.dtype() == args.x.dtype() && is_read_once(args, rows, kWidth)) {
      const Residual<const R*, X*> residual{args.residual.data<R>(), args.sum.data<X>()};
      launch_norm_forward<kNorm, kWidth, ForwardRow<X, kWidth>, X, Y>(args, rows, residual, stream);
    } else {
      const Residual<AnyFloats, AnyFloats> residual{any_floats(args.residual), any_floats(args.sum)};
      launch_norm_forward<kNorm, 1, RowInMemory, AnyFloats, AnyFloats>(args, rows, residual, stream);
    }
  });
}

// kRms leaves bias and mean undefined.
template <Norm kNorm>
void run_norm_forward(const LayerNormForwardArgs& args, const Rows& rows, CudaStream& stream) {
  if (rows.rows == 0) return;
  if (args.sum.defined()) return run_sum_norm_forward<kNorm>(args, rows, stream);
  run_plain_norm_forward<kNorm>(args, rows, stream);
}

// ---- Backward pass: a block goes through one chunk of rows: dx row by row, and the chunk's share of d_weight and
// d_bias in registers, each thread for its columns. add_partial_sums() adds the chunks in order. x and dy are read once
// and dx written once.

// X and Dy: const T* or AnyFloats.
template <typename X, typename Dy>
struct NormBackward {
  X x;
  Dy dy;
  AnyFloats weight, dx;
  const float* mean;  // not used by kRms
  const float* rstd;
  float* d_weight;  // (chunks, columns), of the chunks
  float* d_bias;    // null: none
  int64_t rows, columns, rows_per_chunk;
  HeadRange heads;
  GradientMode mode;
};

constexpr int kBackwardColumnsPerThread = 8;
constexpr int kMaxBackwardThreads = 1024;
constexpr int64_t kMaxColumnsInRegisters = int64_t{kMaxBackwardThreads} * kBackwardColumnsPerThread;

// Values common to the elements of a row.
struct RowFactors {
  float mean, rstd;
  float mean_g, mean_g_xhat;  // over the row, of g and g xhat

  __device__ __forceinline__ float xhat(float x) const { return (x - mean) * rstd; }
  __device__ __forceinline__ float dx(float g, float xhat) const { return rstd * (g - mean_g - xhat * mean_g_xhat); }
};

// mean_g and mean_g_xhat from the thread's sums of g and g xhat; kRms needs the latter only.
template <Norm kNorm, typename Team>
__device__ __forceinline__ void add_row_means(Team& team, float sum_g, float sum_g_xhat, float columns,
                                              RowFactors& factors) {
  if constexpr (kNorm == Norm::kLayer) {
    float sums[2] = {sum_g_xhat, sum_g};
    team.sum(sums);
    factors.mean_g_xhat = sums[0] / columns;
    factors.mean_g = sums[1] / columns;
  } else {
    float sums[1] = {sum_g_xhat};
    team.sum(sums);
    factors.mean_g_xhat = sums[0] / columns;
  }
}

template <Norm kNorm>
using BackwardTeam = RowTeam<kNorm == Norm::kLayer ? 2 : 1>;

// One block a chunk; blockDim.x * kBackwardColumnsPerThread >= columns, a multiple of Width.
template <Norm kNorm, int Width, typename X, typename Dy>
__global__ void __launch_bounds__(kMaxBackwardThreads) norm_backward_kernel(NormBackward<X, Dy> p) {
  constexpr int kVectors = kBackwardColumnsPerThread / Width;
  BackwardTeam<kNorm> team(shared_memory<float>());
  const int columns = static_cast<int>(p.columns);
  const auto column = [&](int k) {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * Width;
  };

  float weight[kVectors][Width] = {}, d_weight[kVectors][Width] = {}, d_bias[kVectors][Width] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (column(k) < columns) load<Width>(p.weight + column(k), weight[k]);
  }
  const int64_t begin = blockIdx.x * p.rows_per_chunk, end = std::min(begin + p.rows_per_chunk, p.rows);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t first = p.heads.row(index) * p.columns;
    float xhat[kVectors][Width] = {}, g[kVectors][Width] = {};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {  // all loads first
      if (column(k) >= columns) continue;
      load<Width>(p.x + first + column(k), xhat[k]);
      load<Width>(p.dy + first + column(k), g[k]);
    }
    RowFactors factors{kNorm == Norm::kLayer ? p.mean[index] : 0.0f, p.rstd[index], 0.0f, 0.0f};
    float sum_g = 0.0f, sum_g_xhat = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) >= columns) continue;
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        xhat[k][i] = factors.xhat(xhat[k][i]);
        d_weight[k][i] += g[k][i] * xhat[k][i];
        d_bias[k][i] += g[k][i];
        g[k][i] *= weight[k][i];
        sum_g += g[k][i];
        sum_g_xhat += g[k][i] * xhat[k][i];
      }
    }
    add_row_means<kNorm>(team, sum_g, sum_g_xhat, static_cast<float>(columns), factors);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) >= columns) continue;
      float dx[Width];
#pragma unroll
      for (int i = 0; i < Width; ++i) dx[i] = factors.dx(g[k][i], xhat[k][i]);
      put_gradient(p.dx + (first + column(k)), dx, p.mode);
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (column(k) >= columns) continue;
    store<Width>(p.d_weight + blockIdx.x * p.columns + column(k), d_weight[k]);
    if (kNorm == Norm::kLayer && p.d_bias != nullptr) {
      store<Width>(p.d_bias + blockIdx.x * p.columns + column(k), d_bias[k]);
    }
  }
}

// For rows that are too long for registers or not aligned: x and dy are read again for dx, and the chunk's sums are
// kept in memory.
template <Norm kNorm>
__global__ void __launch_bounds__(kMaxBackwardThreads)
    norm_backward_in_memory_kernel(NormBackward<AnyFloats, AnyFloats> p) {
  BackwardTeam<kNorm> team(shared_memory<float>());
  float* const d_weight = p.d_weight + blockIdx.x * p.columns;
  float* const d_bias = p.d_bias == nullptr ? nullptr : p.d_bias + blockIdx.x * p.columns;
  const int64_t begin = blockIdx.x * p.rows_per_chunk, end = std::min(begin + p.rows_per_chunk, p.rows);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t first = p.heads.row(index) * p.columns;
    RowFactors factors{kNorm == Norm::kLayer ? p.mean[index] : 0.0f, p.rstd[index], 0.0f, 0.0f};
    float sum_g = 0.0f, sum_g_xhat = 0.0f;
    for (int64_t c = threadIdx.x; c < p.columns; c += blockDim.x) {
      float x[1], dy[1], weight[1];
      load<1>(p.x + (first + c), x);
      load<1>(p.dy + (first + c), dy);
      load<1>(p.weight + c, weight);
      const float xhat = factors.xhat(x[0]), g = dy[0] * weight[0];
      d_weight[c] = (index == begin ? 0.0f : d_weight[c]) + dy[0] * xhat;
      if (d_bias != nullptr) d_bias[c] = (index == begin ? 0.0f : d_bias[c]) + dy[0];
      sum_g += g;
      sum_g_xhat += g * xhat;
    }
    add_row_means<kNorm>(team, sum_g, sum_g_xhat, static_cast<float>(p.columns), factors);
    for (int64_t c = threadIdx.x; c < p.columns; c += blockDim.x) {
      float x[1], dy[1], weight[1];
      load<1>(p.x + (first + c), x);
      load<1>(p.dy + (first + c), dy);
      load<1>(p.weight + c, weight);
      float dx[1] = {factors.dx(dy[0] * weight[0], factors.xhat(x[0]))};
      put_gradient(p.dx + (first + c), dx, p.mode);
    }
  }
}

template <Norm kNorm, typename X, typename Dy>
NormBackward<typename OperandOf<X>::Type, typename OperandOf<Dy>::Type> norm_backward_operands(
    const LayerNormBackwardArgs& args, const Rows& rows, const RowChunks& chunks, float* partials) {
  return {.x = OperandOf<X>::of(args.x),
          .dy = OperandOf<Dy>::of(args.dy),
          .weight = any_floats(args.weight),
          .dx = any_floats(args.dx),
          .mean = data_or_null<float>(args.mean),
          .rstd = args.rstd.data<float>(),
          .d_weight = partials,
          .d_bias = args.d_bias.defined() ? partials + chunks.count * rows.columns : nullptr,
          .rows = rows.rows,
          .columns = rows.columns,
          .rows_per_chunk = chunks.rows_per_chunk,
          .heads = args.heads,
          .mode = args.mode};
}

template <Norm kNorm>
void launch_norm_backward(const LayerNormBackwardArgs& args, const Rows& rows, const RowChunks& chunks, float* partials,
                          CudaStream& stream) {
  const auto blocks = static_cast<unsigned>(chunks.count);
  dispatch(args.x.dtype(), args.dy.dtype(), [&]<typename X, typename Dy>() {
    constexpr int kWidth = kVectorWidth<X, Dy>;
    const bool in_registers = rows.columns % kWidth == 0 && rows.columns <= kMaxColumnsInRegisters &&
                              all_aligned(args.x.raw(), args.dy.raw(), args.weight.raw(), args.dx.raw());
    const unsigned threads =
        team_threads(rows.columns, in_registers ? kBackwardColumnsPerThread : 1, kMaxBackwardThreads);
    const LaunchShape shape{
        .grid = blocks, .block = threads, .shared_bytes = BackwardTeam<kNorm>::scratch_bytes(threads)};
    if (in_registers) {
      launch(norm_backward_kernel<kNorm, kWidth, X*, Dy*>, shape, stream.handle(),
             norm_backward_operands<kNorm, X, Dy>(args, rows, chunks, partials));
    } else {
      launch(norm_backward_in_memory_kernel<kNorm>, shape, stream.handle(),
             norm_backward_operands<kNorm, AnyFloats, AnyFloats>(args, rows, chunks, partials));
    }
  });
}

// kRms leaves mean and d_bias undefined.
template <Norm kNorm>
void run_norm_backward(const LayerNormBackwardArgs& args, const Rows& rows, CudaStream& stream) {
  // One block for each chunk: at 64 registers a thread, about as many as an H100 holds at once.
  const int64_t max_chunks = std::clamp<int64_t>((int64_t{1} << 20) / rows.columns, 64, 4096);
  const RowChunks chunks = divide_rows(rows.rows, 8, max_chunks);
  const int64_t sums = (args.d_bias.defined() ? 2 : 1) * chunks.count * rows.columns;
  auto* const partials = reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(sums) * sizeof(float)));
  if (chunks.count > 0) launch_norm_backward<kNorm>(args, rows, chunks, partials, stream);
  add_partial_sums({partials, chunks.count, rows.columns}, {args.d_weight.data<float>(), args.weight_mode},
                   {data_or_null<float>(args.d_bias), args.bias_mode}, stream);
}

}  // namespace

void run(const LayerNormForwardArgs& args, CudaStream& stream) {
  run_norm_forward<Norm::kLayer>(args, check_args(args), stream);
}

void run(const RmsNormForwardArgs& args, CudaStream& stream) {
  run_norm_forward<Norm::kRms>(args.as_layer_norm(), check_args(args), stream);
}

void run(const LayerNormBackwardArgs& args, CudaStream& stream) {
  run_norm_backward<Norm::kLayer>(args, check_args(args), stream);
}

void run(const RmsNormBackwardArgs& args, CudaStream& stream) {
  run_norm_backward<Norm::kRms>(args.as_layer_norm(), check_args(args), stream);
}

}  // namespace mantissa::cuda
