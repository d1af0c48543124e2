// Staged transport: a transport for host memory made to work with the tensors of a device, through staging memory. For
// GPU ranks over MPI, and for several ranks on one GPU.
//
// Collectives of host tensors and host records go straight to the transport. Device tensors are copied out on their
// stream, exchanged, and copied in on the same stream: a Work is done when the copy in is queued there. Nothing moves
// between two calls of test() or wait(): test() a Work now and then. Like MPI, to be called from one thread.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "core/backend/backend.h"

namespace mantissa {

// Both must outlive it, and it must outlive its Works.
std::unique_ptr<Communicator> create_staged_communicator(Communicator& transport, Backend& backend);

}  // namespace mantissa
