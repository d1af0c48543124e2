// tensor_stats: the first NaN or Inf, the number of each, and the sum of squares, in one pass, added to a record.
// Squares and sums are double, where no fp32 value overflows: a sum of squares is finite exactly if all its terms are.
// So only threads with a non-finite sum examine each of their elements.
//
// A block sums one chunk of elements, each thread its groups of eight in order, then the threads in a fixed order; one
// more block adds the chunks. Chunks depend on the number of elements alone, groups not on alignment: every device and
// every view gives the same bits. Bound by memory: x is read once.
#include <cfloat>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 8;                                     // neighbouring elements
constexpr int64_t kGranule = int64_t{8} * kThreads * kGroup;  // of a chunk
constexpr int64_t kMaxChunks = 1024;                          // the blocks that an H100 holds at once
constexpr size_t kScratchBytes = kThreads / kLanes * sizeof(double);

struct Min {
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

template <typename T>
struct Chunk {
  const T* x;
  int64_t begin, end;  // begin is a multiple of kGroup

  // Calls f(index, value) for the elements of the calling thread, in order.
  template <int Width, typename F>
  __device__ __forceinline__ void for_each(F f) const {
    const int64_t whole = (end - begin) / kGroup;
#pragma unroll 2
    for (int64_t group = threadIdx.x; group < whole; group += kThreads) {
      const int64_t first = begin + group * kGroup;
      float values[kGroup];
      load_group<Width>(x + first, values);
#pragma unroll
      for (int k = 0; k < kGroup; ++k) f(first + k, values[k]);
    }
    if (whole % kThreads != threadIdx.x) return;
    for (int64_t i = begin + whole * kGroup; i < end; ++i) f(i, widen(x[i]));
  }

 private:
  template <int Width>
  static __device__ __forceinline__ void load_group(const T* from, float (&to)[kGroup]) {
#pragma unroll
    for (int k = 0; k < kGroup; k += Width) {
      float part[Width];
      load<Width>(from + k, part);
#pragma unroll
      for (int i = 0; i < Width; ++i) to[k + i] = part[i];
    }
  }
};

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    chunk_stats_kernel(const T* x, int64_t numel, int64_t chunk_elements, int64_t index_offset, TensorStats* chunks) {
  const int64_t begin = blockIdx.x * chunk_elements;
  const Chunk<T> chunk{x, begin, std::min(begin + chunk_elements, numel)};
  double sum = 0.0;
  chunk.template for_each<Width>([&](int64_t, float value) { sum += static_cast<double>(value) * value; });

  TensorStats stats;
  if (!(sum <= DBL_MAX)) {
    chunk.template for_each<Width>([&](int64_t i, float value) {
      if (fabsf(value) <= FLT_MAX) return;
      stats.first_bad = Min()(stats.first_bad, index_offset + i);
      ++(value != value ? stats.nan_count : stats.inf_count);
    });
  }
  stats.sum_squares = block_reduce(sum, Sum(), shared_memory<double>());
  if (!(stats.sum_squares <= DBL_MAX)) {  // the same in all threads
    int64_t* const scratch = shared_memory<int64_t>();
    stats.first_bad = block_reduce(stats.first_bad, Min(), scratch);
    stats.nan_count = block_reduce(stats.nan_count, Sum(), scratch);
    stats.inf_count = block_reduce(stats.inf_count, Sum(), scratch);
  }
  if (threadIdx.x == 0) chunks[blockIdx.x] = stats;
}

// One block: record += chunks.
__global__ void __launch_bounds__(kThreads)
    merge_stats_kernel(const TensorStats* chunks, int64_t count, TensorStats* record) {
  TensorStats stats;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) stats += chunks[i];
  int64_t* const scratch = shared_memory<int64_t>();
  stats.first_bad = block_reduce(stats.first_bad, Min(), scratch);
  stats.nan_count = block_reduce(stats.nan_count, Sum(), scratch);
  stats.inf_count = block_reduce(stats.inf_count, Sum(), scratch);
  stats.sum_squares = block_reduce(stats.sum_squares, Sum(), shared_memory<double>());
  if (threadIdx.x == 0) *record += stats;
}

}  // namespace

void run(const TensorStatsArgs& args, CudaStream& stream) {
  check_args(args);
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  const int64_t chunk_elements = kGranule * divide_up(divide_up(numel, kGranule), kMaxChunks);
  const int64_t count = divide_up(numel, chunk_elements);
  auto* const chunks =
      reinterpret_cast<TensorStats*>(stream.workspace(static_cast<size_t>(count) * sizeof(TensorStats)));
  const LaunchShape shape{.grid = static_cast<unsigned>(count), .block = kThreads, .shared_bytes = kScratchBytes};
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    const auto kernel = all_aligned(x) ? chunk_stats_kernel<kVectorWidth<T>, T> : chunk_stats_kernel<1, T>;
    launch(kernel, shape, stream.handle(), x, numel, chunk_elements, args.index_offset, chunks);
  });
  const LaunchShape one{.grid = 1, .block = kThreads, .shared_bytes = kScratchBytes};
  launch(merge_stats_kernel, one, stream.handle(), chunks, count, reinterpret_cast<TensorStats*>(args.record.raw()));
}

}  // namespace mantissa::cuda
