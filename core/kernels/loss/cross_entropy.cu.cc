// Softmax cross-entropy of each row, as in args.h, with lse = max + ln sum exp(logit - max).
// A block makes one pass over a row: a thread keeps the largest logit so far and the fp32 sum of exponentials relative
// to it, which is rescaled when the largest grows (Milakov & Gimelshein, "Online normalizer calculation for softmax",
// 2018). Threads' sums are added in double; a loss is rounded once. The division of columns among threads depends on
// their number alone, not on the row's address, so a row's loss does not depend on its address. Losses are summed in
// double, in row order within 256 equal runs of rows, then the runs in order. The gradient's term of the target is
// computed by expm1, which does not cancel when its probability is near 1.
//
// A NaN or +Inf logit makes its row's loss and gradient NaN, as does a row of -Inf only; a single -Inf is a probability
// of 0, or NaN with a softcap. Bound by memory: logits are read once forward; read and written once backward.
#include "core/kernels/loss/args.h"

#include <limits>

#include "core/cuda/device/elementwise.h"

namespace mantissa::cuda {
namespace {

constexpr int kMostThreads = 512, kAtOnce = 16;  // logits of a thread in flight

// The value that a logit counts as, and its derivative.
template <Softcap kSoftcap>
struct Capped {
  float cap;

  __device__ __forceinline__ float value(float logit) const {
    if constexpr (kSoftcap == Softcap::kNone) return logit;
    return fmaf(cap, tanhf(logit / cap), logit * 0.0f);  // Inf * 0 is NaN
  }
  __device__ __forceinline__ float slope(float logit) const {
    if constexpr (kSoftcap == Softcap::kNone) return 1.0f;
    const float e = expf(-2.0f * fabsf(logit / cap)), inverse = 1.0f / (1.0f + e);
    return 4.0f * e * inverse * inverse;
  }
};

struct RowLosses {
  const int32_t* targets;
  float *losses, *lse;
  int32_t ignore_index;
};

// Columns beyond the row are -Inf, which adds nothing.
template <int Width, typename T, Softcap kSoftcap>
__device__ __forceinline__ void load_columns(const T* row, int64_t column, int64_t columns, Alignment alignment,
                                             const Capped<kSoftcap>& capped, float (&to)[Width]) {
  if (alignment == Alignment::kVectors && column + Width <= columns) {
    load<Width>(row + column, to);
#pragma unroll
    for (float& logit : to) logit = capped.value(logit);
    return;
  }
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    to[k] = column + k < columns ? capped.value(widen(row[column + k])) : -std::numeric_limits<float>::infinity();
  }
}

// One thread's sum of exp(logit - max). max may lose a NaN; the sum keeps it.
struct OnlineSum {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  template <int Count>
  __device__ __forceinline__ void add(const float (&values)[Count]) {
    float largest = max;
#pragma unroll
    for (int k = 0; k < Count; ++k) largest = fmaxf(largest, values[k]);
    // As long as all are -Inf (or NaN), differences are taken from 0: -Inf - -Inf would be NaN.
    const float reference = largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest;
    float added = 0.0f;
#pragma unroll
    for (int k = 0; k < Count; ++k) added += expf(values[k] - reference);
    sum = fmaf(sum, expf(max - reference), added);
    max = largest;
  }
};

template <typename T, Softcap kSoftcap>
__global__ void __launch_bounds__(kMostThreads, 2)
    cross_entropy_forward_kernel(const T* logits, RowLosses rows, int64_t count, int64_t columns,
                                 Capped<kSoftcap> capped) {
  constexpr int kWidth = kVectorWidth<T>, kLoads = kAtOnce / kWidth;
  const int64_t load_step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const T* const x = logits + row * columns;
    const Alignment alignment =
        reinterpret_cast<uintptr_t>(x) % kAccessBytes == 0 ? Alignment::kVectors : Alignment::kSingle;
    OnlineSum own;
    for (int64_t first = threadIdx.x * kWidth; first < columns; first += load_step * kLoads) {
      float parts[kLoads][kWidth], values[kAtOnce];
#pragma unroll
      for (int l = 0; l < kLoads; ++l) load_columns(x, first + l * load_step, columns, alignment, capped, parts[l]);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) values[k] = parts[k / kWidth][k % kWidth];
      own.add(values);
    }
    const float max = block_reduce(own.max, Max{}, shared_memory<float>());
    // A thread without finite logits has sum 0 (or NaN) and factor 0; if all are so, max is -Inf and the factor NaN.
    const double part = static_cast<double>(own.sum) * static_cast<double>(expf(own.max - max));
    const double sum = block_reduce(part, Sum{}, shared_memory<double>());
    if (threadIdx.x == 0) {
      const double lse = static_cast<double>(max) + log(sum);
      const int32_t target = rows.targets[row];
      rows.lse[row] = static_cast<float>(lse);
      rows.losses[row] = target == rows.ignore_index
                             ? 0.0f
                             : static_cast<float>(lse - static_cast<double>(capped.value(widen(x[target]))));
    }
  }
}

constexpr int kSumThreads = 256;

__global__ void loss_sum_kernel(const float* losses, int64_t rows, float* loss_sum) {
  double* const sums = shared_memory<double>();  // (kSumThreads)
  const int64_t run = (rows + kSumThreads - 1) / kSumThreads;
  const int64_t begin = threadIdx.x * run, end = std::min(rows, begin + run);
  double sum = 0.0;
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) sum += static_cast<double>(losses[row]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int thread = 0; thread < kSumThreads; ++thread) total += sums[thread];
  *loss_sum = static_cast<float>(total);
}

template <typename T>
struct Gradient {
  T* logits;  // (R, V)
  const int32_t* targets;
  const float* lse;
  const float* scale;  // (1)
  int64_t rows, columns;
  int32_t ignore_index;
};

// Columns column ... column + Width - 1 of a row whose target is not ignored.
template <int Width, typename T, Softcap kSoftcap>
__device__ __forceinline__ void differentiate(T* row, int64_t column, int64_t target, float lse, float scale,
                                              const Capped<kSoftcap>& capped) {
  float values[Width];
  load<Width>(row + column, values);
  const int64_t hit = target - column;
  const float target_term = 0 <= hit && hit < Width ? scale * expm1f(capped.value(widen(row[target])) - lse) : 0.0f;
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    const float term = k == hit ? target_term : scale * expf(capped.value(values[k]) - lse);
    values[k] = kSoftcap == Softcap::kNone ? term : term * capped.slope(values[k]);
  }
  store<Width>(row + column, values);
}

template <int Width, typename T>
__device__ __forceinline__ void clear(T* to) {
  const float zeros[Width] = {};
  store<Width>(to, zeros);
}

// Blocks along y share a row. Its columns before the first and after the last 16-byte boundary are processed singly.
template <typename T, Softcap kSoftcap>
__global__ void cross_entropy_backward_kernel(Gradient<T> g, Capped<kSoftcap> capped) {
  constexpr int kWidth = kVectorWidth<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.y) * blockDim.x;
  const float scale = *g.scale;
  for (int64_t row = blockIdx.x; row < g.rows; row += gridDim.x) {
    T* const logits = g.logits + row * g.columns;
    const int64_t beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(logits) % kAccessBytes / sizeof(T));
    const int64_t head = std::min(g.columns, (kWidth - beyond) % kWidth);
    const int64_t vectors = (g.columns - head) / kWidth, tail = head + vectors * kWidth;
    const int64_t target = g.targets[row];
    const float lse = g.lse[row];
    const bool ignored = target == g.ignore_index;
    const auto put = [&]<int Width>(int64_t column) {
      if (ignored) return clear<Width>(logits + column);
      differentiate<Width>(logits, column, target, lse, scale, capped);
    };
    for (int64_t i = thread; i < vectors; i += threads) put.template operator()<kWidth>(head + i * kWidth);
    for (int64_t i = thread; i < head + g.columns - tail; i += threads) {
      put.template operator()<1>(i < head ? i : tail + i - head);
    }
  }
}

// Calls body(Capped<...>).
template <typename Body>
void dispatch_softcap(float softcap, const Body& body) {
  softcap > 0.0f ? body(Capped<Softcap::kGiven>{softcap}) : body(Capped<Softcap::kNone>{});
}

}  // namespace

void run(const CrossEntropyForwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  const RowLosses losses{args.targets.data<int32_t>(), args.losses.data<float>(), args.lse.data<float>(),
                         args.ignore_index};
  if (rows.rows > 0) {
    dispatch(args.logits.dtype(), [&]<typename T>() {
      const int64_t wanted = divide_up(rows.columns, kAtOnce * kLanes) * kLanes;
      const unsigned threads = static_cast<unsigned>(std::min<int64_t>(wanted, kMostThreads));
      dispatch_softcap(args.softcap, [&]<Softcap kSoftcap>(const Capped<kSoftcap>& capped) {
        launch(cross_entropy_forward_kernel<T, kSoftcap>,
               {.grid = blocks_for(rows.rows, 1, stream, 32),
                .block = threads,
                .shared_bytes = threads / kLanes * sizeof(double)},
               stream.handle(), args.logits.data<T>(), losses, rows.rows, rows.columns, capped);
      });
    });
  }
  launch(loss_sum_kernel, {.grid = 1, .block = kSumThreads, .shared_bytes = kSumThreads * sizeof(double)},
         stream.handle(), args.losses.data<float>(), rows.rows, args.loss_sum.data<float>());
}

void run(const CrossEntropyBackwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  if (rows.rows == 0) return;
  dispatch(args.logits.dtype(), [&]<typename T>() {
    constexpr int64_t kThreads = 256, kLargestGridY = 65535;
    const Gradient<T> gradient{.logits = args.logits.data<T>(),
                               .targets = args.targets.data<int32_t>(),
                               .lse = args.lse.data<float>(),
                               .scale = args.scale.data<float>(),
                               .rows = rows.rows,
                               .columns = rows.columns,
                               .ignore_index = args.ignore_index};
    const int64_t across = std::max<int64_t>(1, rows.columns / kVectorWidth<T>);
    const int64_t threads = std::min(kThreads, round_up(across, kLanes));
    const int64_t enough = blocks_for(rows.rows * across, threads, stream);
    const int64_t grid_y = std::min({divide_up(across, threads), enough, kLargestGridY});
    const int64_t grid_x = std::min(rows.rows, divide_up(enough, grid_y));
    dispatch_softcap(args.softcap, [&]<Softcap kSoftcap>(const Capped<kSoftcap>& capped) {
      launch(cross_entropy_backward_kernel<T, kSoftcap>,
             {.grid = dim3(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y)),
              .block = static_cast<unsigned>(threads)},
             stream.handle(), gradient, capped);
    });
  });
}

}  // namespace mantissa::cuda
