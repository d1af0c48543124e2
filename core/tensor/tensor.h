// Tensor: dtype + shape + shared storage. Contiguous, row-major, no autograd inside.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/tensor/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace mantissa {

// A block of device memory that returns itself when the last tensor drops it.
class Storage {
 public:
  using Release = std::function<void()>;
  Storage(std::byte* data, size_t bytes, Device device, Release release)
      : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}
  ~Storage() {
    if (release_) release_();
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  std::byte* data_;
  size_t bytes_;
  Device device_;
  Release release_;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  // A view of `storage` from byte `offset_bytes`; ContractError if it does not fit.
  Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, size_t offset_bytes = 0);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t numel() const { return shape_.numel(); }
  size_t size_bytes() const { return static_cast<size_t>(numel() * mantissa::size_bytes(dtype_)); }
  Device device() const { return storage_->device(); }

  std::byte* raw() const { return storage_->data() + offset_bytes_; }
  // Typed access; ContractError if T is not the tensor's dtype.
  template <typename T>
  T* data() const {
    MANTISSA_CHECK(defined() && DTypeOf<T>::value == dtype_, "[tensor] asked for {} data of a tensor of {}",
                   DTypeOf<T>::value, dtype_);
    return reinterpret_cast<T*>(raw());
  }

  // Same bytes, other shape of equal numel().
  Tensor view(Shape shape) const;
  // Elements [begin, begin + count) of the flattened tensor, shape (count).
  Tensor slice(int64_t begin, int64_t count) const;
  // Whether no other tensor shares the storage, so that it may be overwritten in place.
  bool unique() const { return storage_.use_count() == 1; }

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::kF32;
  Shape shape_;
  size_t offset_bytes_ = 0;
};

}  // namespace mantissa
