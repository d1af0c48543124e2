#include "core/cpu/gemm_job.h"
#include "core/cpu/gemm_tile.h"
#include "core/cpu/gemm_tile_io.h"
#include "core/cpu/scratch.h"

namespace mantissa::cpu {
namespace {

// The dense fp32 tiles of a widened GEMM: full or edge in M, N and K; the first K chunk writes, later ones accumulate.
class WidenedKernels {
 public:
  explicit WidenedKernels(const GemmJob& job) {
    const GemmPlan& plan = job.plan;
    const int64_t ms[] = {plan.tile_m, job.m % plan.tile_m}, ns[] = {plan.tile_n, job.n % plan.tile_n},
                  ks[] = {plan.tile_k, job.k % plan.tile_k};
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        if (ms[i] == 0 || ns[j] == 0) continue;
        kernels_[i][j][0][0] = find(job, ms[i], ns[j], ks[0], GradientMode::kWrite);
        if (job.k >= 2 * plan.tile_k) kernels_[i][j][0][1] = find(job, ms[i], ns[j], ks[0], GradientMode::kAccumulate);
        if (ks[1] != 0) kernels_[i][j][1][1] = find(job, ms[i], ns[j], ks[1], GradientMode::kAccumulate);
      }
    }
  }

  const GemmTile& at(bool edge_m, bool edge_n, bool edge_k, bool accumulate) const {
    return *kernels_[edge_m][edge_n][edge_k][accumulate];
  }

 private:
  static const GemmTile* find(const GemmJob& job, int64_t m, int64_t n, int64_t k, GradientMode mode) {
    return &gemm_tile({.m = m,
                       .n = n,
                       .k = k,
                       .stride_a = job.trans_a == Transpose::kYes ? m : k,
                       .stride_b = job.trans_b == Transpose::kYes ? k : n,
                       .stride_c = n,
                       .dtype = DType::kF32,
                       .dtype_c = DType::kF32,
                       .trans_a = job.trans_a,
                       .trans_b = job.trans_b,
                       .mode = mode,
                       .has_bias = false});
  }

  const GemmTile* kernels_[2][2][2][2] = {};
};

// One thread's dense fp32 tiles.
struct WidenedTiles {
  float *a, *b, *c;
  size_t bytes;

  WidenedTiles(ScratchLayout layout, const GemmPlan& plan)
      : a(layout.take<float>(plan.tile_m * plan.tile_k)),
        b(layout.take<float>(plan.tile_n * plan.tile_k)),
        c(layout.take<float>(plan.tile_m * plan.tile_n)),
        bytes(layout.used_bytes()) {}
};

void widen(const GemmOperand& operand, int64_t row, int64_t column, int64_t rows, int64_t columns, float* dst) {
  load_tile({.src = operand.at(row, column),
             .rows = rows,
             .columns = columns,
             .stride = operand.columns,
             .from = operand.dtype,
             .dst = dst});
}

}  // namespace

void gemm_widened(const GemmJob& job) {
  const GemmPlan& plan = job.plan;
  const int64_t tiles = job.tiles();
  const WidenedKernels kernels(job);
#pragma omp parallel if (tiles > 1)
  {
    const SingleThreadScope single_thread;
    thread_local Scratch memory;
    const WidenedTiles scratch(ScratchLayout(memory.reserve(WidenedTiles(ScratchLayout(), plan).bytes)), plan);
    int64_t b_column = -1, b_depth = -1;  // which tile of b scratch.b holds
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < tiles; ++task) {
      const GemmOutputTile t(job, task);
      for (int64_t l = 0; l < job.k; l += plan.tile_k) {
        const int64_t depth = std::min(plan.tile_k, job.k - l);
        if (job.trans_a == Transpose::kYes) {
          widen(job.a, l, t.i, depth, t.rows, scratch.a);
        } else {
          widen(job.a, t.i, l, t.rows, depth, scratch.a);
        }
        if (b_column != t.j || b_depth != l) {
          if (job.trans_b == Transpose::kYes) {
            widen(job.b, t.j, l, t.columns, depth, scratch.b);
          } else {
            widen(job.b, l, t.j, depth, t.columns, scratch.b);
          }
          b_column = t.j;
          b_depth = l;
        }
        kernels.at(t.rows < plan.tile_m, t.columns < plan.tile_n, depth<plan.tile_k, l> 0)
            .run({.a = reinterpret_cast<const std::byte*>(scratch.a),
                  .b = reinterpret_cast<const std::byte*>(scratch.b),
                  .c = reinterpret_cast<std::byte*>(scratch.c),
                  .bias = nullptr});
      }
      store_tile({.tile = scratch.c,
                  .bias = job.bias ? job.bias + t.j : nullptr,
                  .rows = t.rows,
                  .columns = t.columns,
                  .stride = job.n,
                  .to = job.c.dtype(),
                  .mode = job.mode,
                  .dst = job.c_at(t.i, t.j)});
    }
  }
}

}  // namespace mantissa::cpu
