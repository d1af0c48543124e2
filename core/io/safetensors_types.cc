#include <array>

#include "core/io/safetensors.h"

namespace mantissa {
namespace {

struct Type {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Type, 17> kTypes = {{{"F64", 8},
                                          {"F32", 4},
                                          {"F16", 2},
                                          {"BF16", 2},
                                          {"I64", 8},
                                          {"I32", 4},
                                          {"I16", 2},
                                          {"I8", 1},
                                          {"U64", 8},
                                          {"U32", 4},
                                          {"U16", 2},
                                          {"U8", 1},
                                          {"F8_E4M3", 1},
                                          {"F8_E5M2", 1},
                                          {"F8_E8M0", 1},
                                          {"C64", 8},
                                          {"BOOL", 1}}};

constexpr std::array<std::pair<DType, std::string_view>, 5> kTensorTypes = {
    {{DType::kF32, "F32"}, {DType::kBF16, "BF16"}, {DType::kF16, "F16"}, {DType::kI32, "I32"}, {DType::kU8, "U8"}}};

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const auto& [type, name] : kTensorTypes) {
    if (type == dtype) return name;
  }
  throw ContractError(fmt::format("[safetensors] no name for dtype {}", dtype));
}

std::optional<DType> parse_safetensors_dtype(std::string_view dtype) {
  for (const auto& [type, name] : kTensorTypes) {
    if (name == dtype) return type;
  }
  return std::nullopt;
}

std::optional<int64_t> safetensors_item_bytes(std::string_view dtype) {
  for (const Type& type : kTypes) {
    if (type.name == dtype) return type.bytes;
  }
  return std::nullopt;
}

}  // namespace mantissa
