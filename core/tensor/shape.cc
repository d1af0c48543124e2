#include "core/tensor/shape.h"

#include <fmt/format.h>

namespace mantissa {

std::string Shape::to_string() const {
  std::string text = "(";
  for (int axis = 0; axis < rank_; ++axis) text += (axis ? ", " : "") + std::to_string(extents_[axis]);
  return text + ")";
}

}  // namespace mantissa

fmt::appender fmt::formatter<mantissa::Shape>::format(const mantissa::Shape& shape,
                                                      fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(shape.to_string(), context);
}
