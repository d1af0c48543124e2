// Contracts of Communicator's tensor collectives, checked alike by the transports that work on host memory.
#pragma once

#include "core/tensor/tensor.h"

namespace mantissa {

// ContractError naming the collective unless the tensors are in host memory and have the shapes of communicator.h.
void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks);
void check_all_gather(const Tensor& send, const Tensor& receive, int ranks);
void check_broadcast(const Tensor& data, int root, int ranks);

}  // namespace mantissa
