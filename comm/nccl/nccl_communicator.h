// NCCL transport: the tensors of GPUs, one rank a GPU. Another transport (MPI) brings the ranks together and carries
// what is on the host: records, barriers, host tensors.
//
// The first collective of GPU tensors connects the ranks through NCCL, on the GPU of its tensors. A Work is done when
// the stream is ordered behind it. Collectives are to be called from one thread; a watchdog of its own sees to errors
// (nccl_connection.h). Sums are not NCCL's: contributions are added by Backend::sum_contributions, in rank order.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/nccl/nccl_connection.h"

namespace mantissa {

// Sets NCCL_COMM_BLOCKING=0 in the environment of this process: NcclConnection needs calls that return.
std::unique_ptr<Communicator> create_nccl_communicator(const NcclApi& api, std::unique_ptr<Communicator> host,
                                                       const NcclOptions& options = {});

// MANTISSA_NCCL_START_TIMEOUT and MANTISSA_NCCL_TIMEOUT, in seconds. ConfigError if they hold something else.
NcclOptions nccl_options_from_environment();

}  // namespace mantissa
