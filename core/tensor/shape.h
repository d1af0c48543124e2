// Shape: up to four extents, a plain value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/base/check.h"

namespace mantissa {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;  // rank 0: a scalar, numel() == 1
  Shape(std::initializer_list<int64_t> extents) {
    MANTISSA_CHECK(extents.size() <= kMaxRank, "[shape] at most {} dimensions, got {}", kMaxRank, extents.size());
    for (const int64_t extent : extents) {
      MANTISSA_CHECK(extent >= 0, "[shape] extents must be >= 0, got {}", extent);
      extents_[rank_++] = extent;
    }
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const {
    MANTISSA_CHECK(axis >= 0 && axis < rank_, "[shape] axis {} out of range for rank {}", axis, rank_);
    return extents_[axis];
  }
  int64_t last() const { return (*this)[rank_ - 1]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank_; ++axis) count *= extents_[axis];
    return count;
  }
  bool operator==(const Shape&) const = default;

  std::string to_string() const;  // "(2, 3)"

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace mantissa

// Defined in shape.cc: it needs <fmt/format.h>, on which most files would spend a tenth of their compile time.
template <>
struct fmt::formatter<mantissa::Shape> : fmt::formatter<fmt::string_view> {
  fmt::appender format(const mantissa::Shape& shape, fmt::format_context& context) const;
};
