// Backward pass of layer and RMS norm; formulas and sources as in norm_cpu.cc. A block goes through one chunk of rows:
// dx row by row, and the chunk's share of d_weight and d_bias in registers, each thread for its columns.
// add_partial_sums() adds the chunks in order. x and dy are read once and dx written once: bound by memory.
#include "core/kernels/norm/norm_row_cuda.h"
#include "core/kernels/reduction/partial_sums_cuda.h"

namespace mantissa::cuda {
namespace {

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
  const RowChunks chunks = divide_rows(rows.rows, {.min_rows = 8, .max_chunks = max_chunks});
  const int64_t sums = (args.d_bias.defined() ? 2 : 1) * chunks.count * rows.columns;
  auto* const partials = reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(sums) * sizeof(float)));
  if (chunks.count > 0) launch_norm_backward<kNorm>(args, rows, chunks, partials, stream);
  add_partial_sums({partials, chunks.count, rows.columns}, {args.d_weight.data<float>(), args.weight_mode},
                   {data_or_null<float>(args.d_bias), args.bias_mode}, stream);
}

}  // namespace

void run(const LayerNormBackwardArgs& args, CudaStream& stream) {
  run_norm_backward<Norm::kLayer>(args, check_args(args), stream);
}

void run(const RmsNormBackwardArgs& args, CudaStream& stream) {
  run_norm_backward<Norm::kRms>(args.as_layer_norm(), check_args(args), stream);
}

}  // namespace mantissa::cuda
