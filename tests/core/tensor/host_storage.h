// Heap storage for tests that need no backend.
#pragma once

#include <memory>
#include <new>

#include "core/tensor/tensor.h"

namespace mantissa::testing {

inline std::shared_ptr<Storage> host_storage(size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return std::make_shared<Storage>(data, bytes, Device{}, [data] { ::operator delete(data, kAlignment); });
}

}  // namespace mantissa::testing
