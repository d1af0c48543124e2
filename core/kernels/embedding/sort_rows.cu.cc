// Stable counting sort, digit by digit from the lowest: one pass for key limits up to 512, two up to 2^18 (any
// vocabulary in use). A pass over n keys takes three kernels:
//   count    a tile of 2048 keys is counted by digit                                  counts (digits, tiles)
//   scan     counts become the numbers of equal digits in earlier tiles               totals (digits)
//   scatter  a key goes to: smaller digits + equal ones in earlier tiles + in earlier warps of this tile + before it in
//            its warp. A warp reads its keys in order, 32 at a time; equal digits of those are found by ballots.
// No atomics: every place is computed. Cost: 4 to 8 bytes a key for count, 12 to 16 for scatter, whose writes are
// scattered but stay in the L2 cache; so a million tokens move 50 MB, and a few thousand cost six launches.
// Source: the LSD radix sort of Merrill & Grimshaw, "High Performance and Scalable Radix Sorting", PPL 21, 2011.
#include "core/kernels/embedding/sort_rows_cuda.h"

#include <algorithm>
#include <bit>

#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / kLanes;
constexpr unsigned kRounds = 8, kTile = kThreads * kRounds;
constexpr int kMostDigitBits = 9;  // 8 warps' counters of 512 digits are 16 KiB of shared memory

struct Unsorted {
  const int32_t* keys;
  __device__ __forceinline__ KeyedRow at(int64_t i) const {
    return {static_cast<uint32_t>(keys[i]), static_cast<uint32_t>(i)};
  }
};

struct PartlySorted {
  const KeyedRow* items;
  __device__ __forceinline__ KeyedRow at(int64_t i) const { return items[i]; }
};

struct Pass {
  int64_t rows, tiles;
  int shift, bits;   // of the digit
  unsigned* counts;  // (digits, tiles)
  unsigned* totals;  // (digits)

  __device__ __forceinline__ unsigned digits() const { return 1u << bits; }
  __device__ __forceinline__ unsigned digit_of(uint32_t key) const { return (key >> shift) & (digits() - 1); }
};

// The lanes with the same digit as this lane, among lanes with a digit.
__device__ __forceinline__ unsigned lanes_with(unsigned digit, int bits, bool has_one) {
  unsigned lanes = __ballot_sync(kAllLanes, has_one);
  for (int bit = 0; bit < bits; ++bit) {
    const bool set = (digit >> bit & 1u) != 0;
    const unsigned others = __ballot_sync(kAllLanes, set);
    lanes &= set ? others : ~others;
  }
  return lanes;
}

struct RankedTile {
  KeyedRow items[kRounds];
  unsigned ranks[kRounds];  // how many of the warp's keys before this one have its digit
};

// Warp w has keys w * 256 ... of the tile. Counts its keys of each digit in counters[w][digit].
template <typename Source>
__device__ __forceinline__ void rank(const Source& source, const Pass& pass, unsigned* counters, RankedTile& tile) {
  const unsigned lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile + warp * (kTile / kWarps) + lane;
  unsigned* const own = counters + warp * pass.digits();
  for (unsigned i = threadIdx.x; i < kWarps * pass.digits(); i += kThreads) counters[i] = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * kLanes;
    tile.items[round] = i < pass.rows ? source.at(i) : KeyedRow{};
  }
  __syncthreads();
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    if (first - lane + round * kLanes >= pass.rows) break;  // for the whole warp
    const bool valid = first + round * kLanes < pass.rows;
    const unsigned digit = pass.digit_of(tile.items[round].key);
    const unsigned same = lanes_with(digit, pass.bits, valid);
    const unsigned before = same & ((1u << lane) - 1);
    const unsigned counted = own[digit];
    tile.ranks[round] = counted + static_cast<unsigned>(__popc(before));
    __syncwarp();  // all have read
    if (valid && before == 0) own[digit] = counted + static_cast<unsigned>(__popc(same));
    __syncwarp();
  }
}

template <typename Source>
__global__ void __launch_bounds__(kThreads) count_kernel(Source source, Pass pass) {
  unsigned* const counters = shared_memory<unsigned>();  // (kWarps, digits)
  RankedTile tile;
  rank(source, pass, counters, tile);
  __syncthreads();
  for (unsigned digit = threadIdx.x; digit < pass.digits(); digit += kThreads) {
    unsigned count = 0;
    for (unsigned warp = 0; warp < kWarps; ++warp) count += counters[warp * pass.digits() + digit];
    pass.counts[digit * pass.tiles + blockIdx.x] = count;
  }
}

// sums[i] = values[0] + ... + values[i-1] by one warp; sums may be values. Returns the sum of all.
__device__ __forceinline__ unsigned scan_by_warp(const unsigned* values, unsigned* sums, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t run = (count + kLanes - 1) / kLanes;
  const int64_t begin = std::min(count, lane * run), end = std::min(count, begin + run);
  unsigned own = 0;
#pragma unroll 8
  for (int64_t i = begin; i < end; ++i) own += values[i];
  unsigned through = own;  // of this lane and those before it
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(distance));
    if (lane >= distance) through += other;
  }
  unsigned sum = through - own;
  for (int64_t i = begin; i < end; ++i) {
    const unsigned value = values[i];
    sums[i] = sum;
    sum += value;
  }
  return __shfl_sync(kAllLanes, through, kLanes - 1);
}

// A warp for each digit.
__global__ void __launch_bounds__(kThreads) scan_kernel(unsigned* counts, int64_t tiles, unsigned* totals) {
  const unsigned digit = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  unsigned* const own = counts + digit * tiles;
  const unsigned total = scan_by_warp(own, own, tiles);
  if (threadIdx.x % kLanes == 0) totals[digit] = total;
}

template <typename Source>
__global__ void __launch_bounds__(kThreads) scatter_kernel(Source source, Pass pass, KeyedRow* sorted) {
  unsigned* const counters = shared_memory<unsigned>();        // (kWarps, digits)
  unsigned* const starts = counters + kWarps * pass.digits();  // (digits)
  if (threadIdx.x < kLanes) scan_by_warp(pass.totals, starts, pass.digits());
  RankedTile tile;
  rank(source, pass, counters, tile);
  __syncthreads();
  for (unsigned digit = threadIdx.x; digit < pass.digits(); digit += kThreads) {
    unsigned place = starts[digit] + pass.counts[digit * pass.tiles + blockIdx.x];
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      unsigned& counter = counters[warp * pass.digits() + digit];
      const unsigned count = counter;
      counter = place;
      place += count;
    }
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile + warp * (kTile / kWarps) + lane;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    if (first + round * kLanes >= pass.rows) break;
    const KeyedRow item = tile.items[round];
    sorted[counters[warp * pass.digits() + pass.digit_of(item.key)] + tile.ranks[round]] = item;
  }
}

template <typename Source>
void run_pass(const Source& source, const Pass& pass, KeyedRow* sorted, CudaStream& stream) {
  const unsigned digits = 1u << pass.bits, scan_warps = std::min(digits, kWarps);  // powers of two
  const size_t counter_bytes = kWarps * digits * sizeof(unsigned);
  const unsigned tiles = static_cast<unsigned>(pass.tiles);
  launch(count_kernel<Source>, {.grid = tiles, .block = kThreads, .shared_bytes = counter_bytes}, stream.handle(),
         source, pass);
  launch(scan_kernel, {.grid = digits / scan_warps, .block = scan_warps * kLanes}, stream.handle(), pass.counts,
         pass.tiles, pass.totals);
  launch(scatter_kernel<Source>,
         {.grid = tiles, .block = kThreads, .shared_bytes = counter_bytes + digits * sizeof(unsigned)}, stream.handle(),
         source, pass, sorted);
}

// How a sort is divided into passes, and its workspace into arrays.
struct Plan {
  int passes, bits;  // of a digit
  int64_t tiles;
  size_t items_bytes, counts_bytes, totals_bytes;
  size_t bytes() const { return 2 * items_bytes + counts_bytes + totals_bytes; }
};

Plan plan_of(int64_t rows, int64_t key_limit) {
  const auto padded = [](int64_t bytes) { return static_cast<size_t>(round_up(bytes, 256)); };
  const int key_bits = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(key_limit - 1))));
  const int passes = divide_up(key_bits, kMostDigitBits), bits = divide_up(key_bits, passes);
  const int64_t digits = int64_t{1} << bits, tiles = divide_up(rows, kTile);
  return {.passes = passes,
          .bits = bits,
          .tiles = tiles,
          .items_bytes = padded(rows * static_cast<int64_t>(sizeof(KeyedRow))),
          .counts_bytes = padded(digits * tiles * static_cast<int64_t>(sizeof(unsigned))),
          .totals_bytes = padded(digits * static_cast<int64_t>(sizeof(unsigned)))};
}

}  // namespace

size_t sort_rows_bytes(int64_t rows, int64_t key_limit) { return plan_of(rows, key_limit).bytes(); }

const KeyedRow* sort_rows(const SortRowsArgs& args, CudaStream& stream) {
  MANTISSA_CHECK(args.rows > 0 && args.rows <= INT32_MAX && args.key_limit > 0 && args.key_limit <= int64_t{1} << 31,
                 "[sort_rows] 1 to 2^31 - 1 rows and a key limit of 1 to 2^31 are supported, got {} and {}", args.rows,
                 args.key_limit);
  const Plan plan = plan_of(args.rows, args.key_limit);
  KeyedRow* sorted = reinterpret_cast<KeyedRow*>(args.workspace);
  KeyedRow* other = reinterpret_cast<KeyedRow*>(args.workspace + plan.items_bytes);
  std::byte* const counts = args.workspace + 2 * plan.items_bytes;
  Pass pass{.rows = args.rows,
            .tiles = plan.tiles,
            .shift = 0,
            .bits = plan.bits,
            .counts = reinterpret_cast<unsigned*>(counts),
            .totals = reinterpret_cast<unsigned*>(counts + plan.counts_bytes)};
  run_pass(Unsorted{args.keys}, pass, sorted, stream);
  for (int i = 1; i < plan.passes; ++i) {
    pass.shift += plan.bits;
    run_pass(PartlySorted{sorted}, pass, other, stream);
    std::swap(sorted, other);
  }
  return sorted;
}

}  // namespace mantissa::cuda
