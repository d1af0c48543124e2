// Gradient of the token table, fp32, without atomics: the same bits every time.
//
// d_token[v] (+)= sum of dy[r] over the rows r whose token is v. Rows are sorted by token, stably, and the sorted list
// is cut into chunks whose length depends on R and C only. A warp adds up the rows of one chunk in order, for the
// columns of its lanes; where the token changes it stores the sum in that token's row of the table. A chunk that starts
// in the middle of a token's rows leaves its first sum in the workspace instead, and a second kernel adds those sums in
// the order of the chunks. So rare tokens, and a token that is all of the text, are equally fast. Bound by memory: dy
// is read once; kWrite first clears the token table. 16 bytes at a time where C is a multiple of that.
#include <algorithm>
#include <bit>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"

namespace mantissa::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / kLanes;

// ---- Stable counting sort, digit by digit from the lowest: one pass for key limits up to 512, two up to 2^18 (any
// vocabulary in use). A pass over n keys takes three kernels:
//   count    a tile of 2048 keys is counted by digit                                  counts (digits, tiles)
//   scan     counts become the numbers of equal digits in earlier tiles               totals (digits)
//   scatter  a key goes to: smaller digits + equal ones in earlier tiles + in earlier warps of this tile + before it in
//            its warp. A warp reads its keys in order, 32 at a time; equal digits of those are found by ballots.
// No atomics: every place is computed. Cost: 4 to 8 bytes a key for count, 12 to 16 for scatter, whose writes are
// scattered but stay in the L2 cache; so a million tokens move 50 MB, and a few thousand cost six launches.
// Source: the LSD radix sort of Merrill & Grimshaw, "High Performance and Scalable Radix Sorting", PPL 21, 2011.

struct alignas(8) KeyedRow {  // read and written in one access
  uint32_t key, row;
};

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

// For keys in [0, key_limit).
Plan plan_of(int64_t rows, int64_t key_limit) {
  MANTISSA_CHECK(rows > 0 && rows <= INT32_MAX && key_limit > 0 && key_limit <= int64_t{1} << 31,
                 "[sort_rows] 1 to 2^31 - 1 rows and a key limit of 1 to 2^31 are supported, got {} and {}", rows,
                 key_limit);
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

// The sorted rows (rows), inside of the workspace of plan.bytes(), 256-byte aligned: the numbers of rows, sorted by
// their `keys` (rows) on the device; rows of equal key stay in ascending order.
const KeyedRow* sort_rows(const int32_t* keys, int64_t rows, const Plan& plan, std::byte* workspace,
                          CudaStream& stream) {
  KeyedRow* sorted = reinterpret_cast<KeyedRow*>(workspace);
  KeyedRow* other = reinterpret_cast<KeyedRow*>(workspace + plan.items_bytes);
  std::byte* const counts = workspace + 2 * plan.items_bytes;
  Pass pass{.rows = rows,
            .tiles = plan.tiles,
            .shift = 0,
            .bits = plan.bits,
            .counts = reinterpret_cast<unsigned*>(counts),
            .totals = reinterpret_cast<unsigned*>(counts + plan.counts_bytes)};
  run_pass(Unsorted{keys}, pass, sorted, stream);
  for (int i = 1; i < plan.passes; ++i) {
    pass.shift += plan.bits;
    run_pass(PartlySorted{sorted}, pass, other, stream);
    std::swap(sorted, other);
  }
  return sorted;
}

// ---- Sums of the sorted rows

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
  const int64_t chunk_rows = chunk_rows_of(rows), chunks = divide_up(rows.rows, chunk_rows);
  const Plan plan = plan_of(rows.rows, args.d_token_table.dim(0));
  std::byte* const workspace =
      stream.workspace(plan.bytes() + static_cast<size_t>(chunks * rows.columns) * sizeof(float));
  const KeyedRow* const sorted = sort_rows(args.tokens.data<int32_t>(), rows.rows, plan, workspace, stream);
  const TokenGradient<T> gradient{.sorted = sorted,
                                  .dy = args.dy.data<T>(),
                                  .d_token = args.d_token_table.data<float>(),
                                  .first_sums = reinterpret_cast<float*>(workspace + plan.bytes()),
                                  .rows = rows.rows,
                                  .columns = rows.columns,
                                  .chunk_rows = chunk_rows,
                                  .chunks = chunks,
                                  .mode = args.token_mode};
  constexpr int kWidth = kVectorWidth<T>;
  if (rows.columns % kWidth == 0 && all_aligned(gradient.dy, gradient.d_token))
    return run_token_gradient<kWidth>(gradient, stream);
  run_token_gradient<1>(gradient, stream);
}

}  // namespace

void token_gradient(const EmbeddingBackwardArgs& args, const Rows& rows, CudaStream& stream) {
  if (args.token_mode == GradientMode::kWrite) run(FillArgs{.dst = args.d_token_table, .value = 0.0f}, stream);
  if (rows.rows == 0) return;
  dispatch(args.dy.dtype(), [&]<typename T>() { add_token_gradient<T>(args, rows, stream); });
}

}  // namespace mantissa::cuda
