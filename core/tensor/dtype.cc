#include "core/tensor/dtype.h"

#include <fmt/format.h>

namespace mantissa {

int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  throw ContractError("[size_bytes] unknown dtype");
}

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "unknown";
}

bool is_floating(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

DTypeLimits limits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {0x1.fffffep127, 0x1p-126, 0x1p-149, 0x1p-23};
    case DType::kBF16:
      return {0x1.fep127, 0x1p-126, 0x1p-133, 0x1p-7};
    case DType::kF16:
      return {65504.0, 0x1p-14, 0x1p-24, 0x1p-10};
    default:
      throw ContractError(fmt::format("[limits] expected a floating dtype, got {}", name(dtype)));
  }
}

std::optional<DType> parse_float_dtype(std::string_view text) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

DType widest(DType a, DType b) { return a == b ? a : DType::kF32; }

}  // namespace mantissa

fmt::appender fmt::formatter<mantissa::DType>::format(mantissa::DType dtype, fmt::format_context& context) const {
  return fmt::formatter<fmt::string_view>::format(mantissa::name(dtype), context);
}
