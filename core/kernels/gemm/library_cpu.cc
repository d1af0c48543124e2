// The output is cut into tiles that depend on the shape only. One thread computes each tile with a single-threaded
// matmul. By itself oneDNN splits K over the threads for some shapes, and the sum would depend on their number.
#include "core/kernels/gemm/library_cpu.h"

#include "core/base/thread_team.h"
#include "core/cpu/memory.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/plan_cpu.h"
#include "core/kernels/gemm/tile_cpu.h"
#include "core/kernels/gemm/tile_io_cpu.h"

namespace mantissa::cpu {
namespace {

constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 384;
constexpr int64_t kGranularity = 16;  // whole vectors, and whole tiles of the matrix units

const std::byte* element(const Tensor& tensor, int64_t row, int64_t column) {
  return tensor.raw() + (row * tensor.dim(1) + column) * static_cast<int64_t>(size_bytes(tensor.dtype()));
}

}  // namespace

void gemm_library(const GemmArgs& args) {
  thread_local Scratch bias_scratch;
  const GemmExtents e = check_args(args);
  const bool trans_a = args.trans_a == Transpose::kYes, trans_b = args.trans_b == Transpose::kYes;
  const Cut rows = cut_evenly(e.m, kTileRows, kGranularity), columns = cut_evenly(e.n, kTileColumns, kGranularity);
  const float* const bias = bias_as_fp32(args.bias, args.c.dtype(), bias_scratch);
  // Full and edge tiles. Looked up (or created, which may throw) before the threads start.
  const auto tile = [&](int64_t i, int64_t j) -> const GemmTile& {
    return gemm_tile({.m = rows.size(i),
                      .n = columns.size(j),
                      .k = e.k,
                      .stride_a = args.a.dim(1),
                      .stride_b = args.b.dim(1),
                      .stride_c = e.n,
                      .dtype = args.a.dtype(),
                      .dtype_c = args.c.dtype(),
                      .trans_a = args.trans_a,
                      .trans_b = args.trans_b,
                      .mode = args.mode,
                      .has_bias = bias != nullptr});
  };
  const int64_t last_row = rows.count() - 1, last_column = columns.count() - 1;
  const GemmTile* const tiles[2][2] = {{&tile(0, 0), &tile(0, last_column)},
                                       {&tile(last_row, 0), &tile(last_row, last_column)}};
  const int64_t tasks = rows.count() * columns.count();
  parallel_for(tasks, [&](int64_t task) {
    // Tiles of one column strip are consecutive: they share b.
    const int64_t row_task = task % rows.count(), column_task = task / rows.count();
    const int64_t i = rows.begin(row_task), j = columns.begin(column_task);
    const SingleThreadScope single_thread;
    tiles[row_task == last_row][column_task == last_column]->run(
        {.a = trans_a ? element(args.a, 0, i) : element(args.a, i, 0),
         .b = trans_b ? element(args.b, j, 0) : element(args.b, 0, j),
         .c = const_cast<std::byte*>(element(args.c, i, j)),
         .bias = bias != nullptr ? bias + j : nullptr});
  });
}

}  // namespace mantissa::cpu
