// comm.backend: auto, for ranks whose GPUs and libraries the tests make up.
#include "tools/run/job/job.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "core/backend/registry.h"

namespace mantissa {
namespace {

// A rank's findings on its machine.
struct Findings {
  DeviceIdentity gpu = {};
  std::string device_error = {}, nccl_error = {};
};
thread_local Findings found;
thread_local Communicator* ranks_host = nullptr;

class FakeNccl final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::string name() const override { return "nccl"; }
};

const bool kHasBackend = register_backend("made_up", {.create = [](int) { return nullptr; },
                                                      .unusable_reason = [](int) { return found.device_error; },
                                                      .device_count = [] { return 1; },
                                                      .device_identity = [](int) { return found.gpu; }});
const bool kHasNccl = register_communicator("nccl", {.create = [] { return std::make_unique<FakeNccl>(*ranks_host); },
                                                     .unusable_reason = [] { return found.nccl_error; }});

// By rank: the name of the transport, or the error.
std::vector<std::string> choose(const std::vector<Findings>& by_rank) {
  std::vector<std::string> outcomes(by_rank.size());
  run_ranks(static_cast<int>(by_rank.size()), [&](Communicator& host) {
    const auto rank = static_cast<size_t>(host.rank());
    found = by_rank[rank];
    ranks_host = &host;
    try {
      outcomes[rank] = choose_transport(std::make_unique<ForwardingCommunicator>(host), "made_up")->name();
    } catch (const ConfigError& error) {
      outcomes[rank] = error.what();
    }
  });
  return outcomes;
}

using Outcomes = std::vector<std::string>;
const DeviceIdentity kFirst{.uuid = "a", .pci_bus_id = "0000:01:00.0"};
const DeviceIdentity kSecond{.uuid = "b", .pci_bus_id = "0000:02:00.0"};

TEST(TransportChoice, IsNcclForRanksWithGpusOfTheirOwn) {
  ASSERT_TRUE(kHasBackend && kHasNccl);
  EXPECT_EQ(choose({{.gpu = kFirst}, {.gpu = kSecond}}), (Outcomes{"nccl", "nccl"}));
}

TEST(TransportChoice, IsTheHostsForRanksThatShareAGpu) {
  EXPECT_EQ(choose({{.gpu = kFirst}, {.gpu = kSecond}, {.gpu = kFirst}}), (Outcomes{"local", "local", "local"}));
}

TEST(TransportChoice, IsTheHostsWhereOneRankLacksNccl) {
  EXPECT_EQ(choose({{.gpu = kFirst}, {.gpu = kSecond, .nccl_error = "it is too old"}}), (Outcomes{"local", "local"}));
}

TEST(TransportChoice, IsTheHostsForRanksWithoutGpus) {
  EXPECT_EQ(choose({{.gpu = kFirst}, {}}), (Outcomes{"local", "local"}));
}

TEST(TransportChoice, AllRanksHearOfADeviceThatCannotBeUsed) {
  const Outcomes outcomes = choose({{.gpu = kFirst}, {.gpu = kSecond, .device_error = "it is on fire"}});
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_EQ(outcomes[0].find("rank 1 (node "), 0u) << outcomes[0];
  EXPECT_NE(outcomes[0].find("device: made_up cannot be used: it is on fire"), std::string::npos) << outcomes[0];
}

}  // namespace
}  // namespace mantissa
