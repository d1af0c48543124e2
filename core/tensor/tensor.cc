#include "core/tensor/tensor.h"

namespace mantissa {

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, size_t offset_bytes)
    : storage_(std::move(storage)), dtype_(dtype), shape_(shape), offset_bytes_(offset_bytes) {
  MANTISSA_CHECK(storage_ != nullptr, "[tensor] storage must not be null");
  MANTISSA_CHECK(offset_bytes_ + size_bytes() <= storage_->bytes(),
                 "[tensor] shape {} of {} at byte {} needs {} bytes, the storage has {}", shape_, dtype_, offset_bytes_,
                 offset_bytes_ + size_bytes(), storage_->bytes());
}

Tensor Tensor::view(Shape shape) const {
  MANTISSA_CHECK(shape.numel() == numel(), "[tensor.view] {} has {} elements, {} needs {}", shape_, numel(), shape,
                 shape.numel());
  return Tensor(storage_, dtype_, shape, offset_bytes_);
}

Tensor Tensor::slice(int64_t begin, int64_t count) const {
  MANTISSA_CHECK(begin >= 0 && count >= 0 && begin + count <= numel(),
                 "[tensor.slice] elements [{}, {}) are outside of {} elements", begin, begin + count, numel());
  return Tensor(storage_, dtype_, Shape{count},
                offset_bytes_ + static_cast<size_t>(begin * mantissa::size_bytes(dtype_)));
}

}  // namespace mantissa
