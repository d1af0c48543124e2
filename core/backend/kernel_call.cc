#include "core/backend/kernel_call.h"

#include <fmt/core.h>

namespace mantissa {

std::string_view name(ProductFormat format) {
  constexpr std::string_view kNames[] = {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "fp64"};
  static_assert(std::size(kNames) == static_cast<size_t>(ProductFormat::kF64) + 1);
  return kNames[static_cast<size_t>(format)];
}

std::string KernelCall::signature() const {
  std::string text = fmt::format("{} {}", op, variant);
  for (size_t index = 0; index < operands.size(); ++index) {
    const Operand& operand = operands[index];
    if (!operand.defined) {
      text += " -";
      continue;
    }
    text += fmt::format(" {}{}", name(operand.dtype), operand.shape.to_string());
    for (size_t earlier = 0; earlier < index; ++earlier) {
      if (!operands[earlier].defined || operands[earlier].address != operand.address) continue;
      text += fmt::format("={}", earlier);
      break;
    }
  }
  return text;
}

}  // namespace mantissa
