#include "comm/gpu_claim.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "core/base/error.h"

namespace mantissa {
namespace {

template <size_t N>
void copy_text(const std::string& text, char (&out)[N]) {
  std::memcpy(out, text.data(), std::min(text.size(), N - 1));
}

}  // namespace

Node this_node() {
  char name[256] = {};
  Node node{.name = gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown", .machine = {}};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> node.machine;
  if (node.machine.empty()) node.machine = node.name;
  return node;
}

GpuClaim make_gpu_claim(const Node& node, const DeviceIdentity& gpu, int index, int visible_gpus) {
  GpuClaim claim{.index = index, .visible_gpus = visible_gpus};
  copy_text(node.name, claim.node);
  copy_text(node.machine, claim.machine);
  copy_text(gpu.uuid, claim.uuid);
  copy_text(gpu.pci_bus_id, claim.pci_bus_id);
  return claim;
}

std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims) {
  std::map<std::string, size_t> by_uuid;
  std::map<std::pair<std::string, std::string>, size_t> by_address;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const GpuClaim& claim = claims[rank];
    const auto [same_address, is_new] = by_address.emplace(std::pair(claim.machine, claim.pci_bus_id), rank);
    if (!is_new) return std::pair(same_address->second, rank);
    if (claim.uuid[0] == '\0') continue;
    const auto [same_uuid, is_first] = by_uuid.emplace(claim.uuid, rank);
    if (!is_first) return std::pair(same_uuid->second, rank);
  }
  return std::nullopt;
}

void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice) {
  const auto sharing = ranks_that_share(claims);
  if (!sharing) return;
  const GpuClaim& claim = claims[sharing->second];
  const bool are_slices = std::strcmp(claims[sharing->first].uuid, claim.uuid) != 0;
  const auto local_ranks = std::count_if(claims.begin(), claims.end(), [&](const GpuClaim& other) {
    return std::strcmp(other.machine, claim.machine) == 0;
  });
  throw ConfigError(fmt::format(
      "comm.backend: each rank needs a GPU of its own, but ranks {} and {} both have {}GPU {} ({}) of node {}: it has "
      "{} ranks, and rank {} sees {} GPU{}. {}",
      sharing->first, sharing->second, are_slices ? "slices (MIG) of " : "", claim.index, claim.pci_bus_id, claim.node,
      local_ranks, sharing->second, claim.visible_gpus, claim.visible_gpus == 1 ? "" : "s", advice));
}

bool nccl_shares_gpus(int version, const char* variable) {
  constexpr int kFirstToShare = 23000;
  return version >= kFirstToShare && variable != nullptr && std::strtoll(variable, nullptr, 0) != 0;
}

}  // namespace mantissa
