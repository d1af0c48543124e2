#include "tools/train/transport_choice.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_claim.h"
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
};

GpuClaim claim_of(const DeviceChoice& choice) {
  const BackendEntry& backend = find_backend(choice.backend);
  return {.node = this_node(),
          .gpu = backend.device_identity(choice.index),
          .index = choice.index,
          .visible_gpus = backend.device_count()};
}

// A rank whose device cannot be used must not leave the others waiting for it: all are told, and all throw.
std::vector<RankFacts> gather_facts(Communicator& host, const std::string& device, bool has_nccl) {
  GpuClaim mine{.node = this_node(), .gpu = {}};
  std::string error;
  try {
    mine = claim_of(choose_device(device, host.local_rank()));
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  const std::vector<GpuClaim> claims = all_gather_claims(host, mine);
  const std::vector<std::string> errors = all_gather_texts(host, error);
  const auto have_nccl = all_gather_records(host, int32_t{has_nccl});
  std::vector<RankFacts> all;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    if (!errors[rank].empty()) {
      throw ConfigError(fmt::format("rank {} (node {}): {}", rank, claims[rank].node.name, errors[rank]));
    }
    all.push_back(
        {.claim = claims[rank], .on_gpu = !claims[rank].gpu.pci_bus_id.empty(), .has_nccl = have_nccl[rank] != 0});
  }
  return all;
}

// Why the ranks cannot use NCCL; empty if they can. From the same facts all ranks come to the same end.
std::string why_not(const std::vector<RankFacts>& ranks, const std::string& my_reason) {
  std::vector<GpuClaim> claims;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].has_nccl) {
      return fmt::format("rank {} (node {}) cannot use NCCL{}{}", rank, ranks[rank].claim.node.name,
                         my_reason.empty() ? "" : ": ", my_reason);
    }
    claims.push_back(ranks[rank].claim);
  }
  if (const auto sharing = ranks_that_share(claims)) {
    return fmt::format("ranks {} and {} share a GPU of node {}", sharing->first, sharing->second,
                       claims[sharing->first].node.name);
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
