#include "comm/gpu_claim.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/local/rank_threads.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

// Two machines whose administrator called both of them "node".
const Node kFirst{.name = "node", .machine = "1111"}, kSecond{.name = "node", .machine = "2222"};

GpuClaim claim(const Node& node, const std::string& uuid, const std::string& address, int index, int visible_gpus) {
  return {.node = node, .gpu = {.uuid = uuid, .pci_bus_id = address}, .index = index, .visible_gpus = visible_gpus};
}

TEST(GpuClaims, OfDifferentGpusAreFine) {
  // The second machine: a launcher that shows each rank one GPU, which is number 0 for all of them.
  const std::vector<GpuClaim> claims = {
      claim(kFirst, "a", "0000:01:00.0", 0, 2), claim(kFirst, "b", "0000:02:00.0", 1, 2),
      claim(kSecond, "c", "0000:01:00.0", 0, 1), claim(kSecond, "d", "0000:02:00.0", 0, 1)};
  require_own_gpus(claims, "");
  require_own_gpus({}, "");
  EXPECT_FALSE(ranks_that_share(claims));
}

std::string refusal(const std::vector<GpuClaim>& claims) {
  try {
    require_own_gpus(claims, "Do this.");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GpuClaims, OfOneGpuAreRefusedWithRanksNodeAndCounts) {
  const std::vector<GpuClaim> claims = {
      claim(kFirst, "a", "0000:01:00.0", 0, 2), claim(kSecond, "b", "0000:01:00.0", 0, 2),
      claim(kSecond, "c", "0000:02:00.0", 1, 2), claim(kSecond, "b", "0000:01:00.0", 0, 2)};
  EXPECT_EQ(ranks_that_share(claims), std::pair(size_t{1}, size_t{3}));
  EXPECT_EQ(refusal(claims),
            "comm.backend: each rank needs a GPU of its own, but ranks 1 and 3 both have GPU 0 (0000:01:00.0) of node "
            "node: it has 3 ranks, and rank 3 sees 2 GPUs. Do this.");
}

// Containers may hide from each other that they are on one machine, and renumber its devices.
TEST(GpuClaims, AGpuIsKnownByItsUuidWhateverElseIsSaidOfIt) {
  const std::vector<GpuClaim> claims = {claim(kFirst, "a", "0000:01:00.0", 0, 1),
                                        claim(kSecond, "a", "0000:02:00.0", 0, 1)};
  EXPECT_EQ(ranks_that_share(claims), std::pair(size_t{0}, size_t{1}));
}

// NCCL refuses them as it refuses one GPU.
TEST(GpuClaims, SlicesOfOneGpuCountAsOneGpu) {
  const std::vector<GpuClaim> claims = {claim(kFirst, "a", "0000:01:00.0", 0, 1),
                                        claim(kFirst, "b", "0000:01:00.0", 0, 1)};
  EXPECT_EQ(ranks_that_share(claims), std::pair(size_t{0}, size_t{1}));
  EXPECT_NE(refusal(claims).find("ranks 0 and 1 both have slices (MIG) of GPU 0 (0000:01:00.0)"), std::string::npos);
}

TEST(GpuClaims, WithoutUuidsGoByTheAddress) {
  EXPECT_FALSE(
      ranks_that_share(std::vector{claim(kFirst, "", "0000:01:00.0", 0, 2), claim(kFirst, "", "0000:02:00.0", 1, 2)}));
  EXPECT_TRUE(
      ranks_that_share(std::vector{claim(kFirst, "", "0000:01:00.0", 0, 2), claim(kFirst, "", "0000:01:00.0", 0, 2)}));
}

TEST(GpuClaims, AreGatheredByRankWithNamesOfAnyLength) {
  const std::string longer(200, 'n');
  run_ranks(3, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const std::string name = longer.substr(0, 100 * static_cast<size_t>(rank));
    const auto claims = all_gather_claims(communicator, claim({.name = name, .machine = "m"}, "", longer, rank, 7));
    ASSERT_EQ(claims.size(), 3u);
    for (size_t other = 0; other < 3; ++other) {
      EXPECT_EQ(claims[other].node.name, longer.substr(0, 100 * other));
      EXPECT_EQ(claims[other].node.machine, "m");
      EXPECT_EQ(claims[other].gpu.uuid, "");
      EXPECT_EQ(claims[other].gpu.pci_bus_id, longer);
      EXPECT_EQ(claims[other].index, static_cast<int>(other));
      EXPECT_EQ(claims[other].visible_gpus, 7);
    }
  });
}

TEST(ThisNode, IsTheSameMachineEveryTime) {
  const Node node = this_node();
  EXPECT_FALSE(node.name.empty());
  EXPECT_FALSE(node.machine.empty());
  EXPECT_EQ(this_node().machine, node.machine);
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
