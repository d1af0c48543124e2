// DeviceRecords: plain records of one kind on a device, one for each of a list of things, read by the host at once.
#pragma once

#include <cstring>
#include <vector>

#include "core/backend/backend.h"

namespace mantissa {

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

}  // namespace mantissa
