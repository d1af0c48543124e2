// The GPU of each rank, and whether two ranks share a GPU.
#pragma once

#include "comm/communicator.h"

namespace mantissa {

// The machine that a process runs on. Names are for messages: machines may share one, containers of a machine differ.
struct Node {
  std::string name;
  std::string machine;  // id of the system's last boot (Linux: boot_id); the name if there is none
};
Node this_node();

struct GpuClaim {
  Node node;
  DeviceIdentity gpu;
  int index = 0;         // among the GPUs that the rank sees; a launcher may show each rank different GPUs
  int visible_gpus = 0;  // how many it sees
};
// Claims by rank. Collective.
std::vector<GpuClaim> all_gather_claims(Communicator& communicator, const GpuClaim& mine);

// The first two ranks that use the same GPU, if any do: the same UUID, or the same address in one machine. Different
// UUIDs at the same address are slices (MIG) of a GPU: NCCL counts them as one GPU. Claims are by rank.
std::optional<std::pair<size_t, size_t>> ranks_that_share(std::span<const GpuClaim> claims);

// For transports that need a GPU for each rank: ConfigError naming the first two ranks with the same GPU, the node and
// both counts, and then `advice`. Every rank with the same claims throws the same error.
void require_own_gpus(std::span<const GpuClaim> claims, const std::string& advice);

// Whether ranks may share a GPU: from NCCL 2.30 (23000) on, if NCCL_MULTI_RANK_GPU_ENABLE (`variable` or null) says so.
bool nccl_shares_gpus(int version, const char* variable);

}  // namespace mantissa
