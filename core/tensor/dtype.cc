#include "core/tensor/dtype.h"

#include <fmt/format.h>

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
                                {"fp64", 8}};

const DTypeInfo& info_of(DType dtype) { return kInfos[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_bytes(DType dtype) { return info_of(dtype).bytes; }
std::string_view name(DType dtype) { return info_of(dtype).name; }
bool is_floating(DType dtype) { return info_of(dtype).format.has_value() || dtype == DType::kF64; }

Format format_of(DType dtype) {
  MANTISSA_CHECK(info_of(dtype).format.has_value(), "[format_of] expected fp32, bf16 or fp16, got {}", name(dtype));
  return *info_of(dtype).format;
}

std::optional<DType> parse_float_dtype(std::string_view text) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

DType widest(DType a, DType b) { return a == b ? a : a == DType::kF64 ? a : wide_of(b); }

}  // namespace mantissa

fmt::appender fmt::formatter<mantissa::DType>::format(mantissa::DType dtype, fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(mantissa::name(dtype), context);
}
