// One GEMM, its cut into output tiles, and the two ways to run it.
#pragma once

#include <algorithm>

#include "core/backend/kernel_args.h"
#include "core/cpu/gemm_plan.h"

namespace mantissa::cpu {

// An operand as it is stored: rows of `columns` elements. Tiles of it are asked for in stored coordinates.
struct GemmOperand {
  const std::byte* data;
  int64_t columns;
  DType dtype;

  explicit GemmOperand(const Tensor& tensor) : data(tensor.raw()), columns(tensor.dim(1)), dtype(tensor.dtype()) {}

  const std::byte* at(int64_t row, int64_t column) const { return data + (row * columns + column) * size_bytes(dtype); }
};

// One GEMM: its operands and how it is cut.
struct GemmJob {
  int64_t m, n, k;
  GemmPlan plan;
  GemmOperand a, b;
  Transpose trans_a, trans_b;
  Tensor c;
  const float* bias;  // fp32, or null
  GradientMode mode;

  int64_t tiles() const { return plan.tiles_m(m) * plan.tiles_n(n); }
  std::byte* c_at(int64_t i, int64_t j) const { return c.raw() + (i * n + j) * size_bytes(c.dtype()); }
};

// One output tile: [i, i + rows) x [j, j + columns). Tiles of one column strip follow each other: they share b.
struct GemmOutputTile {
  int64_t i, j, rows, columns;
  GemmOutputTile(const GemmJob& job, int64_t task)
      : i(task % job.plan.tiles_m(job.m) * job.plan.tile_m),
        j(task / job.plan.tiles_m(job.m) * job.plan.tile_n),
        rows(std::min(job.plan.tile_m, job.m - i)),
        columns(std::min(job.plan.tile_n, job.n - j)) {}
};

// Operands as they lie: oneDNN reads strided tiles of them and writes c itself.
void gemm_in_place(const GemmJob& job);

// 16-bit operands, widened tile by tile and K chunk by K chunk; c is rounded once, when its tile is complete.
void gemm_widened(const GemmJob& job);

}  // namespace mantissa::cpu
