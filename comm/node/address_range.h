// AddressRange: addresses of this process that are taken and have no memory yet, for mappings side by side.
#pragma once

#include <cstddef>

namespace mantissa {

constexpr size_t kHugePageBytes = size_t{2} << 20;

class AddressRange {
 public:
  // Begins at a boundary of huge pages. CommError with the system's reason.
  explicit AddressRange(size_t bytes);
  // Everything that has been mapped inside goes as well.
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* taken_;
  size_t taken_bytes_;
  std::byte* data_;
  size_t bytes_;
};

}  // namespace mantissa
