// Which transport carries the gradients of a job whose ranks compute on GPUs.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace mantissa {

// What comm.backend: auto makes of `host`, a transport of several processes: NCCL if it can be used by all ranks and
// each of them has a GPU of its own, else `host` itself, with the reason in the log. `device` is the configuration's.
// Collective. ConfigError on all ranks if one of them cannot use its device.
std::unique_ptr<Communicator> choose_transport(std::unique_ptr<Communicator> host, const std::string& device);

}  // namespace mantissa
