// Sums over rows, gradient statistics, digests, and the verdict about a step: see args.h; contribution_sum.cu.cc has
// the sum over ranks. Sums are added in a fixed order, which depends on the shape alone. All but the last are bound by
// memory.
#include <cfloat>

#include "core/cuda/device/device.h"
#include "core/kernels/reduction/args.h"
#include "core/kernels/reduction/partial_sums_cuda.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cuda {
namespace {

// ---- column_sum: a block sums a chunk of rows of a tile of columns: each of its eight warps every eighth row, then
// the warps in order; add_partial_sums() adds the chunks. x is read once, 16 bytes at a time where it is aligned.
//
// add_partial_sums(): warp w adds the chunks w, w + W, w + 2 W, ... in that order, then the W warps' sums are added in
// order of w. W depends on the number of chunks alone. Bound by the latency of the caches, which still hold the partial
// sums: hence many warps and few chunks for each.

constexpr int kWarps = 8;

template <typename T>
struct ColumnSum {
  const T* x;
  float* partials;  // (chunks, columns)
  int64_t rows, columns, rows_per_chunk;
};

// grid (tiles of 32 * Width columns, chunks), block (32, kWarps).
template <int Width, typename T>
__global__ void __launch_bounds__(kLanes* kWarps) column_sum_kernel(ColumnSum<T> p) {
  constexpr int kTile = kLanes * Width;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t column = tile + static_cast<int64_t>(threadIdx.x) * Width;
  const int64_t begin = blockIdx.y * p.rows_per_chunk;
  const int64_t end = std::min(begin + p.rows_per_chunk, p.rows);
  float* const warp_sums = shared_memory<float>();  // (kWarps, kTile)

  float sums[Width] = {};
  if (column < p.columns) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kWarps) {
      float values[Width];
      load<Width>(p.x + row * p.columns + column, values);
#pragma unroll
      for (int i = 0; i < Width; ++i) sums[i] += values[i];
    }
  }
  store<Width>(warp_sums + threadIdx.y * kTile + threadIdx.x * Width, sums);
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  if (thread >= kTile || tile + thread >= p.columns) return;
  float sum = warp_sums[thread];
  for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp * kTile + thread];
  p.partials[blockIdx.y * p.columns + tile + thread] = sum;
}

template <int Width, typename T>
void launch_column_sum(const ColumnSum<T>& p, int64_t chunks, CudaStream& stream) {
  constexpr int kTile = kLanes * Width;
  static_assert(kTile <= kLanes * kWarps, "a thread for each column of a tile");
  const auto tiles = static_cast<unsigned>(divide_up(p.columns, kTile));
  launch(column_sum_kernel<Width, T>,
         {.grid = dim3(tiles, static_cast<unsigned>(chunks)),
          .block = dim3(kLanes, kWarps),
          .shared_bytes = kWarps * kTile * sizeof(float)},
         stream.handle(), p);
}

// Enough chunks to give every multiprocessor of a large device its eight blocks; a chunk has four rows for each warp.
RowChunks chunks_for(const Rows& rows) {
  return divide_rows(rows.rows, 4 * kWarps, std::clamp<int64_t>((int64_t{1} << 18) / rows.columns, 1, 1024));
}

constexpr int kMaxWarps = 32;

// grid (tiles of 32 columns, targets), block (32 columns, W).
__global__ void __launch_bounds__(kMaxWarps* kLanes)
    add_partial_sums_kernel(PartialSums sums, SumTarget first, SumTarget second) {
  const SumTarget target = blockIdx.y == 0 ? first : second;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float* const warp_sums = shared_memory<float>();  // (W, 32)
  float sum = 0.0f;
  if (column < sums.columns) {
    const float* const from = sums.partials + blockIdx.y * sums.chunks * sums.columns + column;
#pragma unroll 8
    for (int64_t chunk = threadIdx.y; chunk < sums.chunks; chunk += blockDim.y) sum += from[chunk * sums.columns];
  }
  warp_sums[threadIdx.y * kLanes + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= sums.columns) return;
  for (unsigned warp = 1; warp < blockDim.y; ++warp) sum += warp_sums[warp * kLanes + threadIdx.x];
  target.out[column] = target.mode == GradientMode::kAccumulate ? target.out[column] + sum : sum;
}

// ---- tensor_stats: squares and sums are double, where no fp32 value overflows: a sum of squares is finite exactly if
// all its terms are. So only threads with a non-finite sum examine each of their elements.
//
// A block sums one chunk of elements, each thread its groups of eight in order, then the threads in a fixed order; one
// more block adds the chunks. Chunks depend on the number of elements alone, groups not on alignment: every device and
// every view gives the same bits. With several records, each part of the tensor has chunks and a last block of its own.

constexpr int kThreads = 256;
constexpr size_t kScratchBytes = kThreads / kLanes * sizeof(double);
constexpr int kGroup = 8;                                     // neighbouring elements
constexpr int64_t kGranule = int64_t{8} * kThreads * kGroup;  // of a chunk
constexpr int64_t kMaxChunks = 1024;                          // the blocks that an H100 holds at once

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

// grid (parts, chunks): numel elements in each part.
template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    chunk_stats_kernel(const T* x, int64_t numel, int64_t chunk_elements, int64_t index_offset, TensorStats* chunks) {
  const int64_t begin = blockIdx.y * chunk_elements, part = blockIdx.x * numel;
  const Chunk<T> chunk{x + part, begin, std::min(begin + chunk_elements, numel)};
  double sum = 0.0;
  chunk.template for_each<Width>([&](int64_t, float value) { sum += static_cast<double>(value) * value; });

  TensorStats stats;
  if (!(sum <= DBL_MAX)) {
    chunk.template for_each<Width>([&](int64_t i, float value) {
      if (fabsf(value) <= FLT_MAX) return;
      stats.first_bad = Min()(stats.first_bad, index_offset + part + i);
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
  if (threadIdx.x == 0) chunks[blockIdx.x * gridDim.y + blockIdx.y] = stats;
}

// A block for each part: its record += its chunks.
__global__ void __launch_bounds__(kThreads)
    merge_stats_kernel(const TensorStats* chunks, int64_t count, TensorStats* records) {
  TensorStats stats;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) stats += chunks[blockIdx.x * count + i];
  int64_t* const scratch = shared_memory<int64_t>();
  stats.first_bad = block_reduce(stats.first_bad, Min(), scratch);
  stats.nan_count = block_reduce(stats.nan_count, Sum(), scratch);
  stats.inf_count = block_reduce(stats.inf_count, Sum(), scratch);
  stats.sum_squares = block_reduce(stats.sum_squares, Sum(), shared_memory<double>());
  if (threadIdx.x == 0) records[blockIdx.x] += stats;
}

// ---- digest: sums of integers do not depend on their order: blocks add theirs by atomics.

template <typename Item>
__global__ void __launch_bounds__(kThreads) digest_kernel(const Item* x, int64_t numel, int64_t first, Digest* record) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Digest digest;
  const int64_t groups = digest_groups(numel);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < groups; i += threads) {
    digest.add(static_cast<uint64_t>(i), digest_group(x, numel, i));
  }
  digest = digest.behind(static_cast<uint64_t>(digest_groups(first)));
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
  launch(digest_kernel<Item>, shape, stream.handle(), reinterpret_cast<const Item*>(args.x.raw()), numel, args.first,
         record_in<Digest>("digest", args.record));
}

// ---- record_verdict, fold_verdicts and decide_update: one block, without the host. Their sums are sums of integers:
// neither the division of the work nor the order of atomics changes a bit. A few thousand statistics and records take
// no longer than their launches.

__device__ __forceinline__ void add_exactly(ExactSum* sum, double x) {
  ExactSum::split(x, [sum](int word, int64_t amount) { atomic_add(&sum->words[word], static_cast<uint64_t>(amount)); });
}

constexpr size_t kRecordBytes = sizeof(VerdictRecord) + kScratchBytes;

__global__ void __launch_bounds__(kThreads)
    record_verdict_kernel(const float* losses, int64_t micro_batches, const TensorStats* stats, int64_t count,
                          const UpdatePlan* plan, const int32_t* state_faults, int32_t rank, VerdictRecord* record) {
  auto* const total = shared_memory<VerdictRecord>();
  auto* const scratch = reinterpret_cast<int64_t*>(total + 1);
  if (threadIdx.x == 0) *total = {};
  __syncthreads();
  for (int64_t i = threadIdx.x; i < micro_batches; i += kThreads) add_exactly(&total->loss, losses[i]);
  TensorStats own;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    own += stats[i];
    add_exactly(&total->squares, stats[i].sum_squares);
  }
  const int64_t first_bad = block_reduce(own.first_bad, Min(), scratch);
  const int64_t nan_count = block_reduce(own.nan_count, Sum(), scratch);
  const int64_t inf_count = block_reduce(own.inf_count, Sum(), scratch);
  if (threadIdx.x != 0) return;
  total->first_bad = first_bad;
  total->nan_count = nan_count;
  total->inf_count = inf_count;
  total->set_rank(rank, plan->stop_request, state_faults != nullptr ? *state_faults : 0);
  *record = *total;
}

constexpr int kFoldWarps = 8;
constexpr size_t kFoldBytes = kFoldWarps * sizeof(VerdictRecord);
static_assert(ExactSum::kWords < kLanes, "a lane of a warp for each word, and one for the other findings");

// *total += records[first], records[first + step], ... of `count`, by all lanes of a warp.
__device__ __forceinline__ void fold_by_warp(VerdictRecord* total, const VerdictRecord* records, int64_t first,
                                             int64_t step, int64_t count) {
  const unsigned word = threadIdx.x;
  for (int64_t index = first; index < count; index += step) {
    if (word < ExactSum::kWords) {
      total->loss.words[word] += records[index].loss.words[word];
      total->squares.words[word] += records[index].squares.words[word];
    } else if (word == ExactSum::kWords) {
      total->add_findings(records[index]);
    }
  }
}

// The sum of the records, in shared memory: kFoldWarps records. block (32, kFoldWarps); for its first thread.
__device__ const VerdictRecord& fold_by_block(const VerdictRecord* records, int64_t count) {
  auto* const totals = shared_memory<VerdictRecord>();
  if (threadIdx.x == 0) totals[threadIdx.y] = {};
  __syncwarp();
  fold_by_warp(&totals[threadIdx.y], records, threadIdx.y, kFoldWarps, count);
  __syncthreads();
  if (threadIdx.y == 0) fold_by_warp(&totals[0], totals, 1, 1, kFoldWarps);
  __syncwarp();
  return totals[0];
}

__global__ void __launch_bounds__(kLanes* kFoldWarps)
    fold_verdicts_kernel(const VerdictRecord* records, int64_t count, VerdictRecord* record) {
  const VerdictRecord& total = fold_by_block(records, count);
  if (threadIdx.x == 0 && threadIdx.y == 0) *record = total;
}

__global__ void __launch_bounds__(kLanes* kFoldWarps)
    decide_update_kernel(const VerdictRecord* records, int64_t count, const UpdatePlan* plan, int32_t* hold,
                         UpdateControl* control, UpdateDecision* decision, int32_t* applied) {
  const VerdictRecord& total = fold_by_block(records, count);
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  const UpdateDecision decided = mantissa::decide_update(total, *plan, *hold != 0);
  *decision = decided;
  *control = control_of(decided, *plan);
  if (!decided.applied()) {
    *hold = 1;
  } else if (applied != nullptr) {
    ++*applied;
  }
}

}  // namespace

void add_partial_sums(const PartialSums& sums, const SumTarget& first, const SumTarget& second, CudaStream& stream) {
  const auto warps = static_cast<unsigned>(std::clamp<int64_t>(sums.chunks, 1, kMaxWarps));
  const auto tiles = static_cast<unsigned>(divide_up(sums.columns, kLanes));
  const LaunchShape shape{.grid = dim3(tiles, second.out != nullptr ? 2 : 1),
                          .block = dim3(kLanes, warps),
                          .shared_bytes = warps * kLanes * sizeof(float)};
  launch(add_partial_sums_kernel, shape, stream.handle(), sums, first, second);
}

void run(const ColumnSumArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  const RowChunks chunks = chunks_for(rows);
  auto* const partials =
      reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(chunks.count * rows.columns) * sizeof(float)));
  dispatch(args.x.dtype(), [&]<typename T>() {
    const ColumnSum<T> p{args.x.data<T>(), partials, rows.rows, rows.columns, chunks.rows_per_chunk};
    if (chunks.count == 0) return;
    if (all_aligned(p.x) && rows.columns % kVectorWidth<T> == 0)
      return launch_column_sum<kVectorWidth<T>>(p, chunks.count, stream);
    launch_column_sum<1>(p, chunks.count, stream);
  });
  add_partial_sums({partials, chunks.count, rows.columns}, {args.out.data<float>(), args.mode}, {}, stream);
}

void run(const TensorStatsArgs& args, CudaStream& stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  const auto parts = static_cast<unsigned>(args.record.numel() / static_cast<int64_t>(sizeof(TensorStats)));
  const int64_t numel = args.x.numel() / parts;  // of a part
  const int64_t chunk_elements = kGranule * divide_up(divide_up(numel, kGranule), kMaxChunks);
  const int64_t count = divide_up(numel, chunk_elements);
  auto* const chunks =
      reinterpret_cast<TensorStats*>(stream.workspace(static_cast<size_t>(count) * parts * sizeof(TensorStats)));
  const LaunchShape shape{
      .grid = dim3(parts, static_cast<unsigned>(count)), .block = kThreads, .shared_bytes = kScratchBytes};
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    const bool all_alike = parts == 1 || numel % kVectorWidth<T> == 0;
    const auto kernel = all_alike && all_aligned(x) ? chunk_stats_kernel<kVectorWidth<T>, T> : chunk_stats_kernel<1, T>;
    launch(kernel, shape, stream.handle(), x, numel, chunk_elements, args.index_offset, chunks);
  });
  const LaunchShape last{.grid = parts, .block = kThreads, .shared_bytes = kScratchBytes};
  launch(merge_stats_kernel, last, stream.handle(), chunks, count, reinterpret_cast<TensorStats*>(args.record.raw()));
}

void run(const DigestArgs& args, CudaStream& stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  const int64_t bytes = size_bytes(args.x.dtype());
  (bytes == 4 ? digest_as<uint32_t> : bytes == 2 ? digest_as<uint16_t> : digest_as<uint8_t>)(args, stream);
}

void run(const RecordVerdictArgs& args, CudaStream& stream) {
  const int64_t count = check_args(args);
  const LaunchShape shape{.grid = 1, .block = kThreads, .shared_bytes = kRecordBytes};
  launch(record_verdict_kernel, shape, stream.handle(), args.losses.data<float>(), args.losses.numel(),
         record_in<TensorStats>("record_verdict", args.stats), count,
         record_in<UpdatePlan>("record_verdict", args.plan), data_or_null<int32_t>(args.state_faults), args.rank,
         record_in<VerdictRecord>("record_verdict", args.record));
}

void run(const FoldVerdictsArgs& args, CudaStream& stream) {
  const int64_t count = check_args(args);
  launch(fold_verdicts_kernel, {.grid = 1, .block = dim3(kLanes, kFoldWarps), .shared_bytes = kFoldBytes},
         stream.handle(), record_in<VerdictRecord>("fold_verdicts", args.records), count,
         record_in<VerdictRecord>("fold_verdicts", args.record));
}

void run(const DecideUpdateArgs& args, CudaStream& stream) {
  const int64_t count = check_args(args);
  launch(decide_update_kernel, {.grid = 1, .block = dim3(kLanes, kFoldWarps), .shared_bytes = kFoldBytes},
         stream.handle(), record_in<VerdictRecord>("decide_update", args.records), count,
         record_in<UpdatePlan>("decide_update", args.plan), args.hold.data<int32_t>(),
         record_in<UpdateControl>("decide_update", args.control),
         record_in<UpdateDecision>("decide_update", args.decision), data_or_null<int32_t>(args.applied));
}

}  // namespace mantissa::cuda
