// Where the buffers lie that collectives send from.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "core/backend/backend.h"

namespace mantissa {

// Zeroed memory that the ranks of a node share; null where the transport has none, or where the device cannot compute
// in host memory. Collective, the same size on all ranks.
inline std::shared_ptr<Storage> allocate_sent(Communicator& communicator, const Backend& backend, size_t bytes,
                                              const char* what) {
  if (communicator.size() == 1 || backend.device().kind != Device::Kind::kCpu) return nullptr;
  return communicator.allocate_shared(bytes, what);
}

}  // namespace mantissa
