#include "comm/gpu_claim.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
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

GpuClaim make_gpu_claim(const std::string& node, const std::string& pci_bus_id, int index, int visible_gpus) {
  GpuClaim claim{.index = index, .visible_gpus = visible_gpus};
  copy_text(node, claim.node);
  copy_text(pci_bus_id, claim.pci_bus_id);
  return claim;
}

std::string node_name() {
  char text[256] = {};
  if (gethostname(text, sizeof(text) - 1) != 0) return "unknown";
  return text;
}

std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims) {
  std::map<std::pair<std::string, std::string>, size_t> owners;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const auto [owner, is_new] = owners.emplace(std::pair(claims[rank].node, claims[rank].pci_bus_id), rank);
    if (!is_new) return std::pair(owner->second, rank);
  }
  return std::nullopt;
}

void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice) {
  const auto sharing = ranks_that_share(claims);
  if (!sharing) return;
  const GpuClaim& claim = claims[sharing->second];
  const auto local_ranks = std::count_if(
      claims.begin(), claims.end(), [&](const GpuClaim& other) { return std::strcmp(other.node, claim.node) == 0; });
  throw ConfigError(fmt::format(
      "comm.backend: each rank needs a GPU of its own, but ranks {} and {} both have GPU {} ({}) of node {}: it has {} "
      "ranks, and rank {} sees {} GPU{}. {}",
      sharing->first, sharing->second, claim.index, claim.pci_bus_id, claim.node, local_ranks, sharing->second,
      claim.visible_gpus, claim.visible_gpus == 1 ? "" : "s", advice));
}

bool nccl_shares_gpus(int version, const char* variable) {
  constexpr int kFirstToShare = 23000;
  return version >= kFirstToShare && variable != nullptr && std::strtoll(variable, nullptr, 0) != 0;
}

}  // namespace mantissa
