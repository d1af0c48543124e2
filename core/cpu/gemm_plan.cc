#include "core/cpu/gemm_plan.h"

#include <algorithm>
#include <limits>

namespace mantissa::cpu {
namespace {

constexpr int64_t kTileRows[] = {32, 64, 128, 192, 256};
constexpr int64_t kTileColumns[] = {64, 96, 128, 192, 256, 384, 768};

// Team sizes that a cut should suit; the small ones weigh more because all of their cores are ours in practice.
struct Team {
  int64_t threads;
  double weight;
};
constexpr Team kTeams[] = {{1, 1.0}, {2, 2.0}, {4, 1.0}, {8, 0.5}, {16, 0.5}, {32, 0.25}};

// What packing (oneDNN's and ours) adds to a tile's multiplications, in rows and columns: a tile of m x n takes the
// time of m n + kRowCost n + kColumnCost m. Fitted to measured tiles of 64..256 x 192..768 on an AVX-512 machine.
constexpr double kRowCost = 20.0;
constexpr double kColumnCost = 12.0;
constexpr double kCallCost = 256.0;

// Widened K chunks of both operands and the output tile should stay near the second-level cache.
constexpr int64_t kMaxChunk = 768;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `extent` cut into equal parts of at most `limit`, rounded up to whole vectors so that only the last part is ragged.
int64_t even_part(int64_t extent, int64_t limit, int64_t granularity) {
  const int64_t part = ceil_div(extent, ceil_div(extent, limit));
  return std::min(extent, ceil_div(part, granularity) * granularity);
}

// Time of the busiest thread relative to perfect division of the multiplications, averaged over the team sizes.
double relative_time(int64_t m, int64_t n, int64_t tile_m, int64_t tile_n) {
  const int64_t tiles = ceil_div(m, tile_m) * ceil_div(n, tile_n);
  const double tile_time = static_cast<double>(tile_m * tile_n) + kRowCost * static_cast<double>(tile_n) +
                           kColumnCost * static_cast<double>(tile_m) + kCallCost;
  double time = 0.0;
  for (const Team& team : kTeams) {
    const double ideal = static_cast<double>(m * n) / static_cast<double>(team.threads);
    time += team.weight * static_cast<double>(ceil_div(tiles, team.threads)) * tile_time / ideal;
  }
  return time;
}

}  // namespace

GemmPlan plan_gemm(int64_t m, int64_t n, int64_t k, GemmDepth depth) {
  GemmPlan best{};
  double best_time = std::numeric_limits<double>::infinity();
  for (const int64_t rows : kTileRows) {
    for (const int64_t columns : kTileColumns) {
      const int64_t tile_m = even_part(m, rows, 16), tile_n = even_part(n, columns, 16);
      const double time = relative_time(m, n, tile_m, tile_n);
      if (time < best_time) {
        best_time = time;
        best.tile_m = tile_m;
        best.tile_n = tile_n;
      }
    }
  }
  best.tile_k = depth == GemmDepth::kWhole ? k : even_part(k, kMaxChunk, 64);
  return best;
}

}  // namespace mantissa::cpu
