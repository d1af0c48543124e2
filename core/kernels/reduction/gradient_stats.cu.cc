// The pass over gradients that ends in the decision about a step: sums over ranks, statistics, verdict.
#include <cfloat>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cuda {
namespace {

// ---- sum_contributions: out = scale (contributions[0] + contributions[1] + ...), in rank order. With an fp32 sum, one
// rounding to out's dtype. With a sum in the contributions' dtype, a rounding to that after every addition too, as in
// native 16-bit reductions. Bound by memory: every contribution is read once, out written once. A record takes one more
// pass over out: statistics of other chunks than those of tensor_stats would be other bits.

enum class Rounding : uint8_t { kOnce, kEveryAddition };

// T: type of the rows. Added: type of the addends, to which the rows are rounded if it differs.
template <typename T, typename Added, typename Out, Rounding kRounding>
struct SumContributions {
  const T* contributions;
  Out* out;
  int64_t ranks, stride;
  float scale_before, scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    float sum[Width];
    load_term<Width>(contributions + i, sum);
#pragma unroll 4
    for (int64_t rank = 1; rank < ranks; ++rank) {
      float term[Width];
      load_term<Width>(contributions + rank * stride + i, term);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        sum[k] += term[k];
        if constexpr (kRounding == Rounding::kEveryAddition) sum[k] = widen(narrow<Added>(sum[k]));
      }
    }
#pragma unroll
    for (int k = 0; k < Width; ++k) sum[k] *= scale;
    store<Width>(out + i, sum);
  }

 private:
  template <int Width>
  __device__ void load_term(const T* from, float (&term)[Width]) const {
    load<Width>(from, term);
    if constexpr (!std::is_same_v<Added, T>) {
#pragma unroll
      for (int k = 0; k < Width; ++k) term[k] = widen(narrow<Added>(term[k] * scale_before));
    }
  }
};

template <Rounding kRounding, typename T, typename Added, typename Out>
void sum_as(const SumContributionsArgs& args, CudaStream& stream) {
  constexpr int kWidth = kVectorWidth<T, Out>;
  const int64_t stride = args.stride();
  const SumContributions<T, Added, Out, kRounding> operation{
      args.contributions.data<T>(), args.out.data<Out>(), args.ranks(), stride, args.scale_before, args.scale};
  const bool every_rank_alike = args.ranks() == 1 || stride % kWidth == 0;  // else only some ranks are aligned
  const Alignment alignment =
      every_rank_alike ? alignment_of(operation.contributions, operation.out) : Alignment::kSingle;
  run_elementwise<kWidth>(operation, args.out.numel(), alignment, stream);
}

template <typename Added, typename T>
void sum_rows(const SumContributionsArgs& args, CudaStream& stream) {
  dispatch(args.out.dtype(), [&]<typename Out>() {
    if (args.accumulate == DType::kF32) {
      sum_as<Rounding::kOnce, T, Added, Out>(args, stream);
    } else {
      sum_as<Rounding::kEveryAddition, T, Added, Out>(args, stream);
    }
  });
}

// ---- tensor_stats: the first NaN or Inf, the number of each, and the sum of squares, in one pass, added to a record.
// Squares and sums are double, where no fp32 value overflows: a sum of squares is finite exactly if all its terms are,
// so that only threads with a non-finite sum look at their elements one by one.
//
// A block sums one chunk of elements, each thread its groups of eight in order, then the threads in a fixed order; one
// more block adds the chunks. Chunks depend on the number of elements alone, groups not on alignment: every device and
// every view gives the same bits. Bound by memory: x is read once.

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

// ---- digest: bound by memory, x is read once. Sums of integers do not depend on their order: blocks add theirs by
// atomics.

template <typename Item>
__global__ void __launch_bounds__(kThreads) digest_kernel(const Item* x, int64_t numel, Digest* record) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Digest digest;
  const int64_t groups = digest_groups(numel);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < groups; i += threads) {
    digest.add(static_cast<uint64_t>(i), digest_group(x, numel, i));
  }
  digest.sum = block_reduce(digest.sum, Sum(), shared_memory<uint64_t>());
  digest.weighted = block_reduce(digest.weighted, Sum(), shared_memory<uint64_t>());
  if (threadIdx.x != 0) return;
  atomic_add(reinterpret_cast<int64_t*>(&record->sum), digest.sum);
  atomic_add(reinterpret_cast<int64_t*>(&record->weighted), digest.weighted);
}

template <typename Item>
void digest_as(const DigestArgs& args, CudaStream& stream) {
  const int64_t numel = args.x.numel();
  const LaunchShape shape{
      .grid = blocks_for(numel, kDigestRows * kThreads, stream), .block = kThreads, .shared_bytes = kScratchBytes};
  launch(digest_kernel<Item>, shape, stream.handle(), reinterpret_cast<const Item*>(args.x.raw()), numel,
         record_in<Digest>("digest", args.record));
}

// ---- record_verdict and decide_update: one thread decides for the whole device, without the host. It does a few
// operations for each bucket and rank, in their order. They take no longer than their launches except for the largest
// models.

__global__ void record_verdict_kernel(const float* losses, int64_t micro_batches, const TensorStats* stats,
                                      int64_t buckets, const UpdatePlan* plan, const int32_t* state_faults,
                                      VerdictRecord* record) {
  *record = {.stats = fold_stats(stats, buckets),
             .loss_sum = fold_losses(losses, micro_batches),
             .stop_request = plan->stop_request,
             .state_fault = state_faults != nullptr ? *state_faults : 0};
}

__global__ void decide_update_kernel(const VerdictRecord* records, int64_t ranks, const UpdatePlan* plan, int32_t* hold,
                                     UpdateControl* control, UpdateDecision* decision) {
  const UpdateDecision decided = mantissa::decide_update(records, ranks, *plan, *hold != 0);
  *decision = decided;
  *control = control_of(decided, *plan);
  if (!decided.applied()) *hold = 1;
}

}  // namespace

void run(const SumContributionsArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    if constexpr (std::is_same_v<T, float>) {
      dispatch(args.rounded_to, [&]<typename Added>() { sum_rows<Added, float>(args, stream); });
    } else {
      sum_rows<T, T>(args, stream);
    }
  });
  if (args.record.defined()) {
    run(TensorStatsArgs{.x = args.out, .record = args.record, .index_offset = args.index_offset}, stream);
  }
}

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

void run(const DigestArgs& args, CudaStream& stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  switch (size_bytes(args.x.dtype())) {
    case 4:
      return digest_as<uint32_t>(args, stream);
    case 2:
      return digest_as<uint16_t>(args, stream);
    default:
      return digest_as<uint8_t>(args, stream);
  }
}

void run(const RecordVerdictArgs& args, CudaStream& stream) {
  const int64_t buckets = check_args(args);
  launch(record_verdict_kernel, {.grid = 1, .block = 1}, stream.handle(), args.losses.data<float>(),
         args.losses.numel(), record_in<TensorStats>("record_verdict", args.stats), buckets,
         record_in<UpdatePlan>("record_verdict", args.plan), data_or_null<int32_t>(args.state_faults),
         record_in<VerdictRecord>("record_verdict", args.record));
}

void run(const DecideUpdateArgs& args, CudaStream& stream) {
  const int64_t ranks = check_args(args);
  launch(decide_update_kernel, {.grid = 1, .block = 1}, stream.handle(),
         record_in<VerdictRecord>("decide_update", args.records), ranks,
         record_in<UpdatePlan>("decide_update", args.plan), args.hold.data<int32_t>(),
         record_in<UpdateControl>("decide_update", args.control),
         record_in<UpdateDecision>("decide_update", args.decision));
}

}  // namespace mantissa::cuda
