#include "tools/train/transport_choice.h"

#include <algorithm>
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
};

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
  const DeviceChoice choice = choose_device(device, host->local_rank());
  const BackendEntry& backend = find_backend(choice.backend);
  const std::string reason = nccl_unusable_reason();
  const DeviceIdentity gpu = backend.device_identity(choice.index);
  const auto ranks = all_gather_records(
      *host, RankFacts{.claim = make_gpu_claim(this_node(), gpu, choice.index, backend.device_count()),
                       .on_gpu = !gpu.pci_bus_id.empty(),
                       .has_nccl = reason.empty()});
  const auto on_gpu = [](const RankFacts& rank) { return rank.on_gpu; };
  if (!std::all_of(ranks.begin(), ranks.end(), on_gpu)) return host;  // ranks on different devices are refused later
  if (const std::string obstacle = why_not(ranks, reason); !obstacle.empty()) {
    if (host->rank() == 0) {
      spdlog::warn("comm.backend: auto takes {}, which is slower, because gradients go through host memory: {}",
                   host->name(), obstacle);
    }
    return host;
  }
  return create_communicator(kNccl);
}

}  // namespace mantissa
