// Tensors, their dtypes, and the timer of streams on the host.
#include "core/tensor/tensor.h"

#include <fmt/format.h>

#include <chrono>

#include "core/tensor/stream.h"

namespace mantissa {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t bytes;
  std::optional<Format> format{};
};

// By DType.
constexpr DTypeInfo kInfos[] = {{"fp32", 4, Format::kF32},
                                {"bf16", 2, Format::kBF16},
                                {"fp16", 2, Format::kF16},
                                {"i32", 4},
                                {"u8", 1},
                                {"fp64", 8},
                                {"e4m3", 1, Format::kE4M3},
                                {"e5m2", 1, Format::kE5M2}};

const DTypeInfo& info_of(DType dtype) { return kInfos[static_cast<size_t>(dtype)]; }

class HostTimer final : public StreamTimer {
 public:
  size_t mark() override {
    marks_.push_back(Clock::now());
    return marks_.size() - 1;
  }

  double milliseconds(size_t from, size_t to) override {
    MANTISSA_CHECK(from < marks_.size() && to < marks_.size(), "[stream_timer] marks {} and {} of {}", from, to,
                   marks_.size());
    return std::chrono::duration<double, std::milli>(marks_[to] - marks_[from]).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

int64_t size_bytes(DType dtype) { return info_of(dtype).bytes; }
std::string_view name(DType dtype) { return info_of(dtype).name; }
bool is_floating(DType dtype) {
  return (info_of(dtype).format.has_value() && !is_coded(dtype)) || dtype == DType::kF64;
}

Format format_of(DType dtype) {
  MANTISSA_CHECK(info_of(dtype).format.has_value(), "[format_of] expected fp32, bf16, fp16, e4m3 or e5m2, got {}",
                 name(dtype));
  return *info_of(dtype).format;
}

std::optional<DType> parse_float_dtype(std::string_view text) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

DType widest(DType a, DType b) { return a == b ? a : a == DType::kF64 ? a : wide_of(b); }

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

std::unique_ptr<StreamTimer> make_host_timer() { return std::make_unique<HostTimer>(); }

}  // namespace mantissa

fmt::appender fmt::formatter<mantissa::DType>::format(mantissa::DType dtype, fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(mantissa::name(dtype), context);
}

fmt::appender fmt::formatter<mantissa::Shape>::format(const mantissa::Shape& shape,
                                                      fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(shape.to_string(), context);
}
