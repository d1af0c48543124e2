// Device memory of probes: records that the host reads all at once, and scratch tensors apart from the passes' arena.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/backend/backend.h"

namespace mantissa {

// Plain records of the same kind, one for each element of a list.
template <typename Record>
class DeviceRecords {
 public:
  DeviceRecords(Backend& backend, int64_t count, const char* what)
      : count_(count), bytes_(backend.make_tensor(DType::kU8, {count * kBytes}, what)) {}

  int64_t count() const { return count_; }
  // Bytes of one record.
  Tensor operator[](int64_t index) const { return bytes_.slice(index * kBytes, kBytes); }
  void clear(Backend& backend, Stream& stream) const {
    const std::vector<Record> empty(static_cast<size_t>(count_));
    backend.upload(empty.data(), bytes_, stream);
  }
  // Blocks.
  std::vector<Record> read(Backend& backend, Stream& stream) const {
    std::vector<Record> records(static_cast<size_t>(count_));
    backend.download(bytes_, records.data(), stream);
    return records;
  }

 private:
  static constexpr int64_t kBytes = sizeof(Record);

  int64_t count_;
  Tensor bytes_;
};

// Grows to the largest size that was requested.
class Scratch {
 public:
  Scratch(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // Uninitialised; valid until the next request for this place.
  Tensor get(int place, DType dtype, Shape shape) {
    std::shared_ptr<Storage>& storage = places_.at(static_cast<size_t>(place));
    const auto bytes = static_cast<size_t>(shape.numel() * mantissa::size_bytes(dtype));
    if (!storage || storage->bytes() < bytes) {
      if (storage) stream_.synchronize();  // queued work may still use it
      storage.reset();
      storage = backend_.allocate(bytes, "probe");
    }
    return Tensor(storage, dtype, shape);
  }
  size_t size_bytes() const {
    size_t bytes = 0;
    for (const auto& storage : places_) bytes += storage ? storage->bytes() : 0;
    return bytes;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::array<std::shared_ptr<Storage>, 12> places_;
};

}  // namespace mantissa
