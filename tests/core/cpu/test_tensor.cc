#include "tests/core/cpu/test_tensor.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace mantissa::cpu {
namespace {

constexpr std::byte kGuard{0xa5};

std::shared_ptr<Storage> make_storage(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t usable = (bytes + page - 1) / page * page + page;  // at least one page of guard bytes in front
  void* const region = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) throw std::runtime_error("[test_tensor] mmap failed");
  std::byte* const start = static_cast<std::byte*>(region);
  if (mprotect(start + usable, page, PROT_NONE) != 0) throw std::runtime_error("[test_tensor] mprotect failed");
  std::byte* const data = start + usable - bytes;
  std::memset(start, static_cast<int>(kGuard), usable);
  return std::make_shared<Storage>(data, bytes, Device{}, [start, data, usable, page] {
    for (const std::byte* p = start; p < data; ++p) {
      if (*p != kGuard) {
        ADD_FAILURE() << "a kernel wrote " << (data - p) << " bytes before its tensor";
        break;
      }
    }
    munmap(start, usable + page);
  });
}

Tensor make_view(DType dtype, const Shape& shape) {
  const int64_t offset = 1 + shape.numel() % 3;
  const size_t bytes = static_cast<size_t>((offset + shape.numel()) * size_bytes(dtype));
  return Tensor(make_storage(bytes), dtype, Shape{offset + shape.numel()}).slice(offset, shape.numel()).view(shape);
}

}  // namespace

Tensor make_tensor(DType dtype, Shape shape, const std::vector<double>& values) {
  const Tensor tensor = make_view(dtype, shape);
  if (static_cast<int64_t>(values.size()) != tensor.numel())
    throw std::runtime_error("[test_tensor] wrong number of values");
  dispatch(dtype, [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) tensor.data<T>()[i] = from_float<T>(static_cast<float>(values[i]));
  });
  return tensor;
}

Tensor make_unwritten(DType dtype, Shape shape) {
  const Tensor tensor = make_view(dtype, shape);
  if (tensor.numel() != 0)
    std::memset(tensor.raw(), 0xff, tensor.size_bytes());  // all bits set is a NaN in every format
  return tensor;
}

Tensor make_indices(const std::vector<int32_t>& values) {
  const Tensor tensor = make_view(DType::kI32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(to_float(tensor.data<T>()[i]));
  });
  return values;
}

std::vector<std::byte> bytes_of(const Tensor& tensor) { return {tensor.raw(), tensor.raw() + tensor.size_bytes()}; }

}  // namespace mantissa::cpu
