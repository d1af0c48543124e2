#include "core/cpu/gemm_plan.h"

#include <gtest/gtest.h>

#include "core/cpu/gemm_peak.h"

namespace mantissa::cpu {
namespace {

TEST(GemmPlan, TilesFitTheOutputAndChunksFitTheDepth) {
  for (const int64_t m : {1, 3, 17, 65, 500, 2049}) {
    for (const int64_t n : {1, 63, 384, 50304}) {
      for (const int64_t k : {1, 129, 768, 769, 50304}) {
        const GemmPlan whole = plan_gemm(m, n, k, GemmDepth::kWhole), chunks = plan_gemm(m, n, k, GemmDepth::kChunks);
        EXPECT_EQ(whole.tile_k, k);
        EXPECT_GE(chunks.tile_k, 1);
        EXPECT_LE(chunks.tile_k, std::min<int64_t>(k, 768));
        for (const GemmPlan& plan : {whole, chunks}) {
          EXPECT_GE(plan.tile_m, 1);
          EXPECT_GE(plan.tile_n, 1);
          EXPECT_LE(plan.tile_m, m);
          EXPECT_LE(plan.tile_n, n);
          EXPECT_GE(plan.tiles_m(m) * plan.tile_m, m);
          EXPECT_LT((plan.tiles_m(m) - 1) * plan.tile_m, m);  // no tile is empty
          EXPECT_LT((plan.tiles_n(n) - 1) * plan.tile_n, n);
        }
      }
    }
  }
}

// The busiest of `threads` threads against perfect division.
double balance(int64_t m, int64_t n, int64_t threads) {
  const GemmPlan plan = plan_gemm(m, n, 768, GemmDepth::kWhole);
  const int64_t rounds = (plan.tiles_m(m) * plan.tiles_n(n) + threads - 1) / threads;
  return static_cast<double>(m * n) / static_cast<double>(rounds * plan.tile_m * plan.tile_n * threads);
}

TEST(GemmPlan, TransformerShapesKeepTheThreadsBusy) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{512, 768},
                             {512, 2304},
                             {512, 3072},
                             {2048, 384},
                             {2304, 768},
                             {768, 3072},
                             {512, 50304}}) {
    EXPECT_GE(balance(m, n, 2), 0.95) << m << " x " << n;
    EXPECT_GE(balance(m, n, 16), 0.70) << m << " x " << n;
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
