// Tensors for kernel tests, on the device under test. Each starts at an odd offset of guarded memory and ends at its
// end, so that only an element's alignment is certain. Tests never access a tensor's memory directly: it may be a
// GPU's.
#pragma once

#include <type_traits>
#include <vector>

#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {

// Placement of the tensors made while a PlacementScope lives, whatever their size. Kernels may take several elements at
// once only if addresses allow it.
enum class Placement : uint8_t {
  kAtTheEnd,    // of their memory (the default)
  kAligned,     // the first element at a multiple of 16 bytes
  kMisaligned,  // the second one
};

constexpr Placement kPlacements[] = {Placement::kAtTheEnd, Placement::kAligned, Placement::kMisaligned};

class PlacementScope {
 public:
  explicit PlacementScope(Placement placement);
  ~PlacementScope();
  PlacementScope(const PlacementScope&) = delete;
  PlacementScope& operator=(const PlacementScope&) = delete;

 private:
  Placement before_;
};

// Rounds the values to the dtype.
Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values);
// All elements are NaN (i32, u8: all bits set), so elements that a kernel does not write show.
Tensor make_unwritten(DType dtype, Shape shape);
Tensor make_indices(const std::vector<int32_t>& values);
// Writes tensor.size_bytes() raw bytes.
void write_bytes(const Tensor& tensor, const void* bytes);
void set_element(const Tensor& tensor, int64_t index, double value);

// The exact stored values. All of these functions wait for the device.
std::vector<double> values_of(const Tensor& tensor);
std::vector<std::byte> bytes_of(const Tensor& tensor);
void read_bytes(const Tensor& tensor, void* bytes);

template <typename T>
Tensor make_elements(const std::vector<T>& elements) {
  const Tensor tensor = make_unwritten(DTypeOf<T>::value, {static_cast<int64_t>(elements.size())});
  write_bytes(tensor, elements.data());
  return tensor;
}

template <typename T>
std::vector<T> elements_of(const Tensor& tensor) {
  MANTISSA_CHECK(tensor.dtype() == DTypeOf<T>::value, "[test_tensor] elements of {} read as {}", tensor.dtype(),
                 DTypeOf<T>::value);
  std::vector<T> elements(static_cast<size_t>(tensor.numel()));
  read_bytes(tensor, elements.data());
  return elements;
}

// A plain record in a tensor of bytes, aligned for the record, at the very end of its memory.
template <typename Record>
Tensor make_record(const Record& record) {
  static_assert(std::is_trivially_copyable_v<Record>);
  const Tensor tensor(device_under_test().guarded_storage(sizeof(Record)), DType::kU8,
                      Shape{static_cast<int64_t>(sizeof(Record))});
  write_bytes(tensor, &record);
  return tensor;
}

template <typename Record>
Record fetch_record(const Tensor& tensor) {
  static_assert(std::is_trivially_copyable_v<Record>);
  MANTISSA_CHECK(tensor.size_bytes() == sizeof(Record), "[test_tensor] a record of {} bytes read from {}",
                 sizeof(Record), tensor.size_bytes());
  Record record;
  read_bytes(tensor, &record);
  return record;
}

}  // namespace mantissa::kernel_test
