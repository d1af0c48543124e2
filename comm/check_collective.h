// Contracts of Communicator's tensor collectives, checked alike by all transports.
#pragma once

#include "core/tensor/tensor.h"

namespace mantissa {

// ContractError naming the collective unless the tensors are in the memory of `device` (host memory by default) and
// have the shapes of communicator.h.
void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks, Device device = {});
void check_all_gather(const Tensor& send, const Tensor& receive, int ranks, Device device = {});

}  // namespace mantissa
