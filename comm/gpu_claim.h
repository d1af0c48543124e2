// Which GPU each rank holds, and whether two ranks hold the same one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// The machine that a process runs on. Names are for people: two machines may have the same one, and containers of one
// machine different ones.
struct Node {
  std::string name;
  std::string machine;  // the id of the running system's start (Linux: boot_id); the name where there is none
};
Node this_node();

// The GPU that a rank uses.
struct GpuClaim {
  Node node;
  DeviceIdentity gpu;
  int index = 0;         // among those that the rank sees; a launcher may show each rank other GPUs
  int visible_gpus = 0;  // how many it sees
};
// Claims by rank. Collective.
std::vector<GpuClaim> all_gather_claims(Communicator& communicator, const GpuClaim& mine);

// The first two ranks that hold the same GPU, if any do: the same UUID, or one address of one machine. The latter are
// slices (MIG) of one GPU where the UUIDs differ, which NCCL takes for one GPU as well. Claims are by rank.
std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims);

// For transports that need a GPU for each rank: ConfigError naming the first two ranks that hold the same one, the node
// and both counts, and then `advice`. The same on every rank that is given the same claims.
void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice);

// Whether NCCL lets several ranks use one GPU: from 2.30 (23000) on, if NCCL_MULTI_RANK_GPU_ENABLE, of which `variable`
// is the value or null, says so.
bool nccl_shares_gpus(int version, const char* variable);

}  // namespace mantissa
