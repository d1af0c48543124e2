// Which GPU each rank holds, and whether two ranks hold the same one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace mantissa {

// What each rank says of its GPU: trivially copyable, to be gathered. A PCI address is one GPU of one node. (An index
// is not: a launcher may show each rank other GPUs.)
struct GpuClaim {
  char node[64] = {};
  char pci_bus_id[32] = {};
  int32_t index = 0;         // among those that the rank sees
  int32_t visible_gpus = 0;  // how many it sees
};
GpuClaim make_gpu_claim(const std::string& node, const std::string& pci_bus_id, int index, int visible_gpus);

// The name of the machine that this process runs on.
std::string node_name();

// The first two ranks that hold the same GPU, if any do. Claims are by rank.
std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims);

// For transports that need a GPU for each rank: ConfigError naming the first two ranks that hold the same one, the node
// and both counts, and then `advice`. The same on every rank that is given the same claims.
void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice);

// Whether NCCL lets several ranks use one GPU: from 2.30 (23000) on, if NCCL_MULTI_RANK_GPU_ENABLE, of which `variable`
// is the value or null, says so.
bool nccl_shares_gpus(int version, const char* variable);

}  // namespace mantissa
