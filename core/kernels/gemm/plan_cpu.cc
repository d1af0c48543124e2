#include "core/kernels/gemm/plan_cpu.h"

#include <algorithm>

namespace mantissa::cpu {
namespace {

// With 1024 words of K, a task reads 512 KiB of a, and one panel of b of 192 KiB at a time.
constexpr int64_t kTaskRows = 128;
constexpr int64_t kLeastPackedRows = 32;
constexpr int64_t kTaskColumns = 480;

}  // namespace

Cut cut_evenly(int64_t extent, int64_t most, int64_t multiple) {
  const int64_t parts = (extent + most - 1) / most;
  return {extent, round_up((extent + parts - 1) / parts, multiple)};
}

GemmTasks plan_tasks(const GemmTaskShape& shape) {
  const auto& [m, n, tile_rows, tile_columns, threads, packs_rows] = shape;
  const int64_t least_rows = round_up(std::min(m, packs_rows ? kLeastPackedRows : tile_rows), tile_rows);
  int64_t rows = round_up(std::min(m, kTaskRows), tile_rows),
          columns = round_up(packs_rows ? n : std::min(n, kTaskColumns), tile_columns);
  const auto tasks = [&] { return GemmTasks{cut_evenly(m, rows, tile_rows), cut_evenly(n, columns, tile_columns)}; };
  while (threads > 1 && tasks().count() < GemmTasks::kPerThread * threads) {
    const bool fewer_rows = rows > least_rows && (packs_rows || rows >= columns);
    if (fewer_rows || (rows > least_rows && columns == tile_columns)) {
      rows = std::max(least_rows, round_up(rows / 2, tile_rows));
    } else if (columns > tile_columns) {
      columns = round_up(columns / 2, tile_columns);
    } else {
      break;
    }
  }
  return tasks();
}

}  // namespace mantissa::cpu
