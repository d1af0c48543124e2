#include "tools/train/transport_choice.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "comm/gpu_claim.h"
#include "comm/registry.h"
#include "core/backend/registry.h"
#include "core/base/log.h"
#include "tools/train/device_choice.h"

namespace mantissa {
namespace {

constexpr const char* kNccl = "nccl";

std::string nccl_unusable_reason() {
  const std::vector<std::string> names = communicator_names();
  if (std::find(names.begin(), names.end(), kNccl) == names.end()) return "this program was built without NCCL";
  return find_communicator(kNccl).unusable_reason();
}

struct RankFacts {
  GpuClaim claim;
  bool on_gpu = false;
  bool has_nccl = false;
  char device_error[512] = {};  // empty if there is none
};

RankFacts facts_of(const DeviceChoice& choice, bool has_nccl) {
  const BackendEntry& backend = find_backend(choice.backend);
  const DeviceIdentity gpu = backend.device_identity(choice.index);
  return {.claim = make_gpu_claim(this_node(), gpu, choice.index, backend.device_count()),
          .on_gpu = !gpu.pci_bus_id.empty(),
          .has_nccl = has_nccl};
}

// A rank whose device cannot be used must not leave the others waiting for it: all are told, and all throw.
std::vector<RankFacts> gather_facts(Communicator& host, const std::string& device, bool has_nccl) {
  RankFacts mine;
  try {
    mine = facts_of(choose_device(device, host.local_rank()), has_nccl);
  } catch (const std::exception& error) {
    mine.claim = make_gpu_claim(this_node(), {}, 0, 0);
    const std::string reason = error.what();
    reason.copy(mine.device_error, sizeof(mine.device_error) - 1);
  }
  const std::vector<RankFacts> all = all_gather_records(host, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].device_error[0] == '\0') continue;
    throw ConfigError(fmt::format("rank {} (node {}): {}", rank, all[rank].claim.node, all[rank].device_error));
  }
  return all;
}

// Why the ranks cannot use NCCL; empty if they can. From the same facts all ranks come to the same end.
std::string why_not(const std::vector<RankFacts>& ranks, const std::string& my_reason) {
  std::vector<GpuClaim> claims;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].has_nccl) {
      return fmt::format("rank {} (node {}) cannot use NCCL{}{}", rank, ranks[rank].claim.node,
                         my_reason.empty() ? "" : ": ", my_reason);
    }
    claims.push_back(ranks[rank].claim);
  }
  if (const auto sharing = ranks_that_share(claims)) {
    return fmt::format("ranks {} and {} share a GPU of node {}", sharing->first, sharing->second,
                       claims[sharing->first].node);
  }
  return "";
}

}  // namespace

std::unique_ptr<Communicator> choose_transport(std::unique_ptr<Communicator> host, const std::string& device) {
  const std::string reason = nccl_unusable_reason();
  const std::vector<RankFacts> ranks = gather_facts(*host, device, reason.empty());
  const auto on_gpu = [](const RankFacts& rank) { return rank.on_gpu; };
  if (!std::all_of(ranks.begin(), ranks.end(), on_gpu)) return host;  // ranks on different devices are refused later
  if (const std::string obstacle = why_not(ranks, reason); !obstacle.empty()) {
    if (host->rank() == 0) {
      log_warn("comm.backend: auto takes {}, which is slower, because gradients go through host memory: {}",
               host->name(), obstacle);
    }
    return host;
  }
  return create_communicator(kNccl);
}

}  // namespace mantissa
