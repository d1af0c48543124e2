// Forward pass of layer and RMS norm, of x or of x + residual; formulas and sources as in norm_cpu.cc. A row is read
// once, into the registers of the warp or block that works on it: mean first, then the variance of the row that is
// already in registers. sum and y are written once: bound by memory; weight and bias come from the caches.
#include <utility>

#include "core/kernels/norm/norm_row_cuda.h"

namespace mantissa::cuda {
namespace {

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

}  // namespace

void run(const LayerNormForwardArgs& args, CudaStream& stream) {
  run_norm_forward<Norm::kLayer>(args, check_args(args), stream);
}

void run(const RmsNormForwardArgs& args, CudaStream& stream) {
  run_norm_forward<Norm::kRms>(args.as_layer_norm(), check_args(args), stream);
}

}  // namespace mantissa::cuda
