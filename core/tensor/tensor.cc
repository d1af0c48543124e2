#include "core/tensor/tensor.h"

#include <fmt/format.h>

namespace mantissa {

std::string Shape::to_string() const {
  std::string text = "(";
  for (int axis = 0; axis < rank_; ++axis) text += (axis ? ", " : "") + std::to_string(extents_[axis]);
  return text + ")";
}

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

fmt::appender fmt::formatter<mantissa::Shape>::format(const mantissa::Shape& shape,
                                                      fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(shape.to_string(), context);
}
