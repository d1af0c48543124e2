#include "core/cpu/gemm_job.h"
#include "core/cpu/gemm_tile.h"

namespace mantissa::cpu {

void gemm_in_place(const GemmJob& job) {
  const GemmPlan& plan = job.plan;
  const int64_t tiles = job.tiles();
  // Full and edge tiles, looked up (or made, which may throw) before the threads start.
  const GemmTile* kernels[2][2] = {};
  for (const bool edge_m : {false, true}) {
    for (const bool edge_n : {false, true}) {
      const int64_t m = edge_m ? job.m % plan.tile_m : plan.tile_m, n = edge_n ? job.n % plan.tile_n : plan.tile_n;
      if (m == 0 || n == 0) continue;
      kernels[edge_m][edge_n] = &gemm_tile({.m = m,
                                            .n = n,
                                            .k = job.k,
                                            .stride_a = job.a.columns,
                                            .stride_b = job.b.columns,
                                            .stride_c = job.n,
                                            .dtype = job.a.dtype,
                                            .dtype_c = job.c.dtype(),
                                            .trans_a = job.trans_a,
                                            .trans_b = job.trans_b,
                                            .mode = job.mode,
                                            .has_bias = job.bias != nullptr});
    }
  }
#pragma omp parallel if (tiles > 1)
  {
    const SingleThreadScope single_thread;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < tiles; ++task) {
      const GemmOutputTile t(job, task);
      kernels[t.rows < plan.tile_m][t.columns < plan.tile_n]->run(
          {.a = job.trans_a == Transpose::kYes ? job.a.at(0, t.i) : job.a.at(t.i, 0),
           .b = job.trans_b == Transpose::kYes ? job.b.at(t.j, 0) : job.b.at(0, t.j),
           .c = job.c_at(t.i, t.j),
           .bias = job.bias ? job.bias + t.j : nullptr});
    }
  }
}

}  // namespace mantissa::cpu
