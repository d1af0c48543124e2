// NCCL transport: the tensors of GPUs, one rank a GPU. Another transport (MPI) connects ranks and carries host data.
//
// The first collective of GPU tensors connects the ranks through NCCL, on the GPU of its tensors. A Work is done when
// the stream is ordered after it. Call collectives from one thread; a watchdog thread handles errors
// (nccl_connection.h). NCCL adds nothing: contributions are added by our kernel, in rank order.
#pragma once

#include "comm/communicator.h"
#include "comm/nccl/nccl_connection.h"

namespace mantissa {

// Sets NCCL_COMM_BLOCKING=0 in the environment of this process: NcclConnection needs calls that return.
std::unique_ptr<Communicator> create_nccl_communicator(const NcclApi& api, std::unique_ptr<Communicator> host,
                                                       const NcclOptions& options = {});

// Reads MANTISSA_NCCL_START_TIMEOUT and MANTISSA_NCCL_TIMEOUT, in seconds. ConfigError unless they are positive.
NcclOptions nccl_options_from_environment();

}  // namespace mantissa
