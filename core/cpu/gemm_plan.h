// How a GEMM is cut into tiles. The cut depends on the shape alone, never on the number of threads, so that every
// output element is computed by the same instructions in the same order on one thread or on sixteen.
#pragma once

#include <cstdint>

namespace mantissa::cpu {

struct GemmPlan {
  int64_t tile_m, tile_n;  // one task: tile_m x tile_n of the output, fewer at the edges
  int64_t tile_k;          // K, or the chunks of it that are summed in order into an fp32 tile

  int64_t tiles_m(int64_t m) const { return (m + tile_m - 1) / tile_m; }
  int64_t tiles_n(int64_t n) const { return (n + tile_n - 1) / tile_n; }
};

enum class GemmDepth : uint8_t { kWhole, kChunks };

GemmPlan plan_gemm(int64_t m, int64_t n, int64_t k, GemmDepth depth);

}  // namespace mantissa::cpu
