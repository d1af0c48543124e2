#include "tests/core/kernels/test_tensor.h"

#include <utility>

namespace mantissa::kernel_test {
namespace {

Placement current_placement = Placement::kAtTheEnd;

Tensor make_view(DType dtype, const Shape& shape) {
  constexpr int64_t kAccessBytes = 16;
  const int64_t element = size_bytes(dtype);
  int64_t offset = 1 + shape.numel() % 3, count = offset + shape.numel();
  if (current_placement != Placement::kAtTheEnd) count += kAccessBytes / element;
  const auto storage = device_under_test().guarded_storage(static_cast<size_t>(count * element));
  if (current_placement != Placement::kAtTheEnd) {
    const int64_t wanted = current_placement == Placement::kAligned ? 0 : kAccessBytes - element;
    const auto address = reinterpret_cast<uintptr_t>(storage->data());
    while (static_cast<int64_t>((address + static_cast<uintptr_t>(offset * element)) % kAccessBytes) != wanted)
      ++offset;
  }
  return Tensor(storage, dtype, Shape{count}).slice(offset, shape.numel()).view(shape);
}

}  // namespace

PlacementScope::PlacementScope(Placement placement) : before_(std::exchange(current_placement, placement)) {}
PlacementScope::~PlacementScope() { current_placement = before_; }

Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values) {
  Tensor tensor = make_view(dtype, shape);
  MANTISSA_CHECK(static_cast<int64_t>(values.size()) == tensor.numel(), "[test_tensor] {} values for shape {}",
                 values.size(), shape);
  if (dtype == DType::kF64) {
    write_bytes(tensor, values.data());
    return tensor;
  }
  dispatch(dtype, [&]<typename T>() {
    std::vector<T> elements(values.size());
    for (size_t i = 0; i < values.size(); ++i) elements[i] = from_float<T>(static_cast<float>(values[i]));
    write_bytes(tensor, elements.data());
  });
  return tensor;
}

Tensor make_unwritten(DType dtype, Shape shape) {
  Tensor tensor = make_view(dtype, shape);
  const std::vector<std::byte> bytes(tensor.size_bytes(), std::byte{0xff});  // a NaN in every format
  write_bytes(tensor, bytes.data());
  return tensor;
}

Tensor make_indices(const std::vector<int32_t>& values) { return make_elements(values); }

void write_bytes(const Tensor& tensor, const void* bytes) {
  device_under_test().backend().upload(bytes, tensor, device_under_test().stream());
}

void set_element(const Tensor& tensor, int64_t index, double value) {
  dispatch(tensor.dtype(), [&]<typename T>() {
    const T element = from_float<T>(static_cast<float>(value));
    write_bytes(tensor.slice(index, 1), &element);
  });
}

void read_bytes(const Tensor& tensor, void* bytes) {
  device_under_test().backend().download(tensor, bytes, device_under_test().stream());
}

std::vector<double> values_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::kF64) return elements_of<double>(tensor);
  std::vector<double> values;
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (const T element : elements_of<T>(tensor)) values.push_back(static_cast<double>(to_float(element)));
  });
  return values;
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.size_bytes());
  read_bytes(tensor, bytes.data());
  return bytes;
}

}  // namespace mantissa::kernel_test
