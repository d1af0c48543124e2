// The local transport, the registry of transports, profiling, and claims on GPUs.
#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_claim.h"
#include "comm/local/local_communicator.h"
#include "core/base/error.h"
#include "core/profile/step_profiler.h"
#include "tests/comm/communicator_contract.h"

namespace mantissa {
namespace {

class LocalCommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(LocalCommunicatorTest, KeepsTheContract) {
  run_ranks(GetParam(), [](Communicator& communicator) { testing::check_communicator_contract(communicator); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalCommunicatorTest, ::testing::Values(1, 2, 3, 4, 5));

TEST(LocalCommunicator, NothingIsDoneBeforeAllRanksHavePosted) {
  // Rank 1 posts after rank 0 has seen that its gather is not done.
  std::atomic<bool> tested = false;
  run_ranks(2, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      while (!tested) std::this_thread::yield();
    }
    float mine = 0.5f, all[2] = {};
    const auto storage = [](float* data, size_t count) {
      return std::make_shared<Storage>(reinterpret_cast<std::byte*>(data), count * sizeof(float), Device{}, nullptr);
    };
    HostStream stream;
    const auto work = communicator.all_gather(Tensor(storage(&mine, 1), DType::kF32, Shape{1}),
                                              Tensor(storage(all, 2), DType::kF32, Shape{2, 1}), stream);
    if (communicator.rank() == 0) {
      EXPECT_FALSE(work->test());
      tested = true;
    }
    work->wait();
    EXPECT_EQ(all[0], 0.5f);
    EXPECT_EQ(all[1], 0.5f);
  });
}

TEST(LocalCommunicator, DisagreeingRanksGetAnErrorInsteadOfWaiting) {
  std::atomic<int> failures = 0;
  run_ranks(3, [&](Communicator& communicator) {
    const std::vector<std::byte> mine(communicator.rank() == 2 ? 8 : 4);
    try {
      communicator.all_gather_bytes(mine);
    } catch (const CommError& error) {
      ++failures;
      EXPECT_NE(std::string(error.what()).find("ranks disagree on collective 0"), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), ExitCode::kComm);
    }
  });
  EXPECT_EQ(failures, 3);
}

TEST(LocalCommunicator, AbortWakesTheRanksThatWait) {
  std::atomic<int> woken = 0;
  run_ranks(3, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      communicator.abort(5);
      return;
    }
    try {
      communicator.barrier();
    } catch (const CommError& error) {
      ++woken;
      EXPECT_NE(std::string(error.what()).find("rank 1 ended the job with code 5"), std::string::npos) << error.what();
    }
  });
  EXPECT_EQ(woken, 2);
}

TEST(CommunicatorRegistry, FindsTheLinkedTransport) {
  const auto communicator = create_communicator("local");
  EXPECT_EQ(communicator->name(), "local");
  EXPECT_EQ(communicator->size(), 1);
  testing::check_communicator_contract(*communicator);
}

TEST(CommunicatorRegistry, NamesWhatThereIs) {
  try {
    create_communicator("telepathy");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no transport named 'telepathy'; this build has: local"),
              std::string::npos)
        << error.what();
  }
}

// Runs `body` on two ranks. Profiles one step of the first rank, on this thread.
OpTimes profile_two_ranks(const std::function<void(Communicator&, Stream&)>& body) {
  testing::HostPlace place;
  const auto stream = place.create_stream();
  LocalGroup group(2);
  std::thread other([&] { body(group.rank(1), *place.create_stream()); });
  StepProfiler profiler({.warm_up_steps = 0});
  profiler.attach(*stream, StreamOrder::kInline);
  const auto profiled = create_profiling_communicator(group.rank(0), profiler);
  {
    const Range step(RangeKind::kPhase, "step");
    body(*profiled, *stream);
  }
  other.join();
  return profiler.finish();
}

TEST(ProfilingCommunicator, KeepsTheContract) {
  const OpTimes times = profile_two_ranks(
      [](Communicator& communicator, Stream&) { testing::check_communicator_contract(communicator); });
  std::vector<std::string> seen;
  for (const OpTime& row : times.rows()) {
    if (!row.op.empty()) seen.emplace_back(row.op);
    EXPECT_GT(row.calls, 0) << row.op;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"all_gather", "all_gather_bytes", "all_to_all", "barrier"}));
}

TEST(ProfilingCommunicator, CountsWhatThisRankSends) {
  testing::HostPlace place;
  const OpTimes times = profile_two_ranks([&](Communicator& communicator, Stream& stream) {
    const Tensor mine = place.make(DType::kF32, {3}), all = place.make(DType::kF32, {2, 3}),
                 sent = place.make(DType::kF32, {2, 3});
    communicator.all_gather(mine, all, stream)->wait();
    const auto exchange = communicator.all_to_all(sent, all, stream);
    while (!exchange->test()) std::this_thread::yield();
    all_gather_records(communicator, double{1.0});
  });
  for (const OpTime& row : times.rows()) {
    if (row.op.empty()) continue;
    EXPECT_EQ(row.calls, 1) << row.op;  // calls of test() and wait() are not counted
    EXPECT_EQ(row.work.bytes, row.op == "all_gather_bytes" ? 8.0 : 12.0) << row.op;
    EXPECT_EQ(row.work.bound, Bound::kOther) << row.op;
    EXPECT_EQ(row.polled, row.op != "all_gather_bytes") << row.op;
  }
  EXPECT_EQ(times.rows().size(), 4u);
}

TEST(ProfilingCommunicator, TellsWhatTheTransportTells) {
  StepProfiler profiler;
  LocalGroup group(2);
  const auto profiled = create_profiling_communicator(group.rank(1), profiler);
  EXPECT_EQ(profiled->name(), group.rank(1).name());
  EXPECT_EQ(profiled->rank(), 1);
  EXPECT_EQ(profiled->size(), 2);
  EXPECT_EQ(profiled->local_rank(), group.rank(1).local_rank());
  EXPECT_EQ(profiled->local_size(), group.rank(1).local_size());
  EXPECT_EQ(profiled->can_be_captured(), group.rank(1).can_be_captured());
  EXPECT_EQ(profiled->carries_device_memory(), group.rank(1).carries_device_memory());
  EXPECT_EQ(profiled->node_memory(), group.rank(1).node_memory());
}

// Two machines with the same name.
const Node kFirst{.name = "node", .machine = "1111"}, kSecond{.name = "node", .machine = "2222"};

GpuClaim claim(const Node& node, const std::string& uuid, const std::string& address, int index, int visible_gpus) {
  return {.node = node, .gpu = {.uuid = uuid, .pci_bus_id = address}, .index = index, .visible_gpus = visible_gpus};
}

TEST(GpuClaims, OfDifferentGpusAreFine) {
  // On the second machine a launcher shows each rank one GPU, as number 0.
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

// Containers on one machine may report different machines and renumber its devices.
TEST(GpuClaims, AGpuIsKnownByItsUuidWhateverElseIsSaidOfIt) {
  const std::vector<GpuClaim> claims = {claim(kFirst, "a", "0000:01:00.0", 0, 1),
                                        claim(kSecond, "a", "0000:02:00.0", 0, 1)};
  EXPECT_EQ(ranks_that_share(claims), std::pair(size_t{0}, size_t{1}));
}

// NCCL rejects MIG slices of the same GPU, as it rejects a shared GPU.
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
