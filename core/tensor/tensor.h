// Tensor: dtype + shape + shared storage. Contiguous, row-major, without autograd.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/tensor/dtype.h"

namespace mantissa {

// The device that holds a tensor's bytes.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// Distinguishes physical devices, whatever index each process gives them. Empty if it cannot (CPU).
struct DeviceIdentity {
  std::string uuid;        // "5fb0aa26-7a4d-...": differs from machine to machine; empty where the driver gives none
  std::string pci_bus_id;  // "0000:01:00.0": of one machine. Slices of one GPU (MIG) have the same
};

// Up to four extents, a plain value.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;  // rank 0: a scalar, numel() == 1
  // ContractError for more than kMaxRank extents, or negative ones.
  Shape(std::initializer_list<int64_t> extents) {
    MANTISSA_CHECK(extents.size() <= kMaxRank, "[shape] at most {} dimensions, got {}", kMaxRank, extents.size());
    for (const int64_t extent : extents) {
      MANTISSA_CHECK(extent >= 0, "[shape] extents must be >= 0, got {}", extent);
      extents_[rank_++] = extent;
    }
  }

  int rank() const { return rank_; }
  std::vector<int64_t> extents() const { return {extents_.begin(), extents_.begin() + rank_}; }
  int64_t operator[](int axis) const {
    MANTISSA_CHECK(axis >= 0 && axis < rank_, "[shape] axis {} out of range for rank {}", axis, rank_);
    return extents_[axis];
  }
  int64_t last() const { return (*this)[rank_ - 1]; }
  // The product of the extents.
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

// A block of device memory that returns itself when the last tensor drops it.
class Storage {
 public:
  using Release = std::function<void()>;
  // Memory of `bytes` at `data`; `release` runs at the end.
  Storage(std::byte* data, size_t bytes, Device device, Release release)
      : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}
  ~Storage() {
    if (release_) release_();
  }
  Storage& operator=(Storage&&) = delete;

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

  Tensor view(Shape shape) const;  // same bytes, other shape of equal numel()
  // Elements [begin, begin + count) of the flattened tensor, shape (count).
  Tensor slice(int64_t begin, int64_t count) const;
  // Rows [begin, begin + count) of a matrix.
  Tensor rows(int64_t begin, int64_t count) const {
    return slice(begin * shape_[1], count * shape_[1]).view({count, shape_[1]});
  }
  // Whether no other tensor shares the storage, so that it may be overwritten in place.
  bool unique() const { return storage_.use_count() == 1; }

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::kF32;
  Shape shape_;
  size_t offset_bytes_ = 0;
};

// --- how kernels take tensors: as rows, as addresses, and by their dtypes

enum class GradientMode : uint8_t { kWrite, kAccumulate };  // dx = ..., or dx += ...

// A tensor seen as a matrix by its last axis.
struct Rows {
  int64_t rows;
  int64_t columns;
};

// Address of an optional operand; null if it is undefined.
template <typename T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}
inline std::byte* raw_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

// dispatch() over two or three dtypes: calls f.template operator()<A, B>() or <A, B, C>().
template <typename F>
void dispatch(DType a, DType b, F&& f) {
  dispatch(a, [&]<typename A>() { dispatch(b, [&]<typename B>() { f.template operator()<A, B>(); }); });
}
// The same for three.
template <typename F>
void dispatch(DType a, DType b, DType c, F&& f) {
  dispatch(a, b,
           [&]<typename A, typename B>() { dispatch(c, [&]<typename C>() { f.template operator()<A, B, C>(); }); });
}

}  // namespace mantissa

// Defined in tensor.cc, as is that of DType: it needs <fmt/format.h>, a tenth of most files' compile time.
template <>
struct fmt::formatter<mantissa::Shape> : fmt::formatter<fmt::string_view> {
  fmt::appender format(const mantissa::Shape& shape, fmt::format_context& context) const;
};
