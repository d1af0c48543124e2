// Scratch: memory of a device that probes compute in, apart from the arena of the passes. It grows to what is asked
// for.
#pragma once

#include <array>

#include "core/backend/backend.h"

namespace mantissa {

class Scratch {
 public:
  static constexpr int kPlaces = 12;  // tensors at once

  Scratch(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // Uninitialised; good until the place is asked for again.
  Tensor get(int place, DType dtype, Shape shape) {
    std::shared_ptr<Storage>& storage = places_.at(static_cast<size_t>(place));
    const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
    if (!storage || storage->bytes() < bytes) {
      if (storage) stream_.synchronize();  // what is queued may still use it
      storage.reset();
      storage = backend_.allocate(bytes, "probe");
    }
    return Tensor(storage, dtype, shape);
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::array<std::shared_ptr<Storage>, kPlaces> places_;
};

}  // namespace mantissa
