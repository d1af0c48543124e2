#include "comm/gpu_claim.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "core/base/process.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
Node this_node() {
  Node node{.name = host_name(), .machine = {}};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> node.machine;
  if (node.machine.empty()) node.machine = node.name;
  return node;
}

std::vector<GpuClaim> all_gather_claims(Communicator& communicator, const GpuClaim& mine) {
  const std::vector<std::string> texts = {
      mine.node.name,      mine.node.machine,          mine.gpu.uuid,
      mine.gpu.pci_bus_id, std::to_string(mine.index), std::to_string(mine.visible_gpus)};
  std::vector<GpuClaim> claims;
  for (const auto& of_rank : all_gather_text_lists(communicator, texts)) {
    claims.push_back({.node = {.name = of_rank[0], .machine = of_rank[1]},
                      .gpu = {.uuid = of_rank[2], .pci_bus_id = of_rank[3]},
                      .index = std::stoi(of_rank[4]),
                      .visible_gpus = std::stoi(of_rank[5])});
  }
  return claims;
}

std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims) {
  std::map<std::string, size_t> by_uuid;
  std::map<std::pair<std::string, std::string>, size_t> by_address;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const GpuClaim& claim = claims[rank];
    const auto [same_address, is_new] = by_address.emplace(std::pair(claim.node.machine, claim.gpu.pci_bus_id), rank);
    if (!is_new) return std::pair(same_address->second, rank);
    if (claim.gpu.uuid.empty()) continue;
    const auto [same_uuid, is_first] = by_uuid.emplace(claim.gpu.uuid, rank);
    if (!is_first) return std::pair(same_uuid->second, rank);
  }
  return std::nullopt;
}

void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice) {
  const auto sharing = ranks_that_share(claims);
  if (!sharing) return;
  const GpuClaim& claim = claims[sharing->second];
  const bool are_slices = claims[sharing->first].gpu.uuid != claim.gpu.uuid;
  const auto local_ranks = std::count_if(
      claims.begin(), claims.end(), [&](const GpuClaim& other) { return other.node.machine == claim.node.machine; });
  throw ConfigError(fmt::format(
      "comm.backend: each rank needs a GPU of its own, but ranks {} and {} both have {}GPU {} ({}) of node {}: it has "
      "{} ranks, and rank {} sees {}. {}",
      sharing->first, sharing->second, are_slices ? "slices (MIG) of " : "", claim.index, claim.gpu.pci_bus_id,
      claim.node.name, local_ranks, sharing->second, counted(claim.visible_gpus, "GPU"), advice));
}

bool nccl_shares_gpus(int version, const char* variable) {
  constexpr int kFirstToShare = 23000;
  return version >= kFirstToShare && variable != nullptr && std::strtoll(variable, nullptr, 0) != 0;
}

}  // namespace mantissa
