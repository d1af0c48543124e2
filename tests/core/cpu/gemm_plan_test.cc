#include "core/kernels/gemm/packed_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/kernels/gemm/gemm_cpu.h"

namespace mantissa::cpu {
namespace {

TEST(GemmPlan, AnEvenCutCoversTheExtent) {
  for (const int64_t extent : {1, 3, 17, 65, 500, 768, 769, 2049, 50304}) {
    for (const int64_t multiple : {1, 2, 48}) {
      const Cut cut = cut_evenly(extent, 768, multiple);
      EXPECT_LE(cut.part, 768);
      EXPECT_EQ(cut.part % multiple, 0);
      EXPECT_EQ(cut.count(), (extent + 767) / 768);
      int64_t covered = 0;
      for (int64_t i = 0; i < cut.count(); ++i) {
        EXPECT_EQ(cut.begin(i), covered);
        EXPECT_GE(cut.size(i), 1);
        covered += cut.size(i);
      }
      EXPECT_EQ(covered, extent);
    }
  }
}

// The busiest of `threads` threads against perfect division, by tiles of 8 x 48: tasks go to whoever is free.
double balance(int64_t m, int64_t n, int64_t threads, bool packs_rows) {
  const GemmTasks tasks =
      plan_tasks({.m = m, .n = n, .tile_rows = 8, .tile_columns = 48, .threads = threads, .packs_rows = packs_rows});
  std::vector<int64_t> busy(static_cast<size_t>(threads));
  for (int64_t column = 0; column < tasks.columns.count(); ++column) {
    for (int64_t row = 0; row < tasks.rows.count(); ++row) {
      *std::min_element(busy.begin(), busy.end()) += tasks.rows.size(row) * tasks.columns.size(column);
    }
  }
  return static_cast<double>(m * n) / static_cast<double>(threads * *std::max_element(busy.begin(), busy.end()));
}

TEST(GemmPlan, TransformerShapesKeepTheThreadsBusy) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{512, 768},
                             {512, 2304},
                             {512, 3072},
                             {2048, 384},
                             {2304, 768},
                             {768, 3072},
                             {512, 4608}}) {
    for (const bool packs_rows : {false, true}) {
      EXPECT_GE(balance(m, n, 2, packs_rows), 0.90) << m << " x " << n;
      EXPECT_GE(balance(m, n, 16, packs_rows), 0.70) << m << " x " << n;
    }
  }
}

TEST(GemmPeak, IsMeasuredForEveryFloatingDType) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const double flops = measure_gemm_peak_flops(dtype);
    EXPECT_GT(flops, 1e8) << name(dtype);  // any CPU of this century
    EXPECT_LT(flops, 1e16) << name(dtype);
  }
  EXPECT_THROW(measure_gemm_peak_flops(DType::kI32), ContractError);
}

}  // namespace
}  // namespace mantissa::cpu
