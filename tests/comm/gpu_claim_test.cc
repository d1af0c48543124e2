#include "comm/gpu_claim.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/error.h"

namespace mantissa {
namespace {

TEST(GpuClaims, OfDifferentGpusAreFine) {
  // Node b: a launcher that shows each rank one GPU, which is number 0 for all of them.
  const std::vector<GpuClaim> claims = {
      make_gpu_claim("a", "0000:01:00.0", 0, 2), make_gpu_claim("a", "0000:02:00.0", 1, 2),
      make_gpu_claim("b", "0000:01:00.0", 0, 1), make_gpu_claim("b", "0000:02:00.0", 0, 1)};
  require_own_gpus(claims, "");
  require_own_gpus({}, "");
  EXPECT_FALSE(ranks_that_share(claims));
}

TEST(GpuClaims, OfOneGpuAreRefusedWithRanksNodeAndCounts) {
  const std::vector<GpuClaim> claims = {
      make_gpu_claim("a", "0000:01:00.0", 0, 2), make_gpu_claim("b", "0000:01:00.0", 0, 2),
      make_gpu_claim("b", "0000:02:00.0", 1, 2), make_gpu_claim("b", "0000:01:00.0", 0, 2)};
  EXPECT_EQ(ranks_that_share(claims), std::pair(size_t{1}, size_t{3}));
  try {
    require_own_gpus(claims, "Do this.");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "comm.backend: each rank needs a GPU of its own, but ranks 1 and 3 both have GPU 0 (0000:01:00.0) of "
                 "node b: it has 3 ranks, and rank 3 sees 2 GPUs. Do this.");
  }
}

TEST(GpuClaims, CutNamesThatAreTooLong) {
  const GpuClaim claim = make_gpu_claim(std::string(200, 'n'), std::string(200, 'p'), 0, 1);
  EXPECT_EQ(std::string(claim.node), std::string(63, 'n'));
  EXPECT_EQ(std::string(claim.pci_bus_id), std::string(31, 'p'));
}

TEST(NcclSharesGpus, FromTwoThirtyOnWhenTheVariableSaysSo) {
  EXPECT_TRUE(nccl_shares_gpus(23000, "1"));
  EXPECT_TRUE(nccl_shares_gpus(23203, "1"));
  EXPECT_FALSE(nccl_shares_gpus(22809, "1"));
  EXPECT_FALSE(nccl_shares_gpus(23000, "0"));
  EXPECT_FALSE(nccl_shares_gpus(23000, ""));
  EXPECT_FALSE(nccl_shares_gpus(23000, nullptr));
}

}  // namespace
}  // namespace mantissa
