#include "tools/config/precision_names.h"

#include <fmt/core.h>

#include "tools/config/config_binding.h"

namespace mantissa {

std::vector<std::string> uniform_precisions() {
  std::vector<std::string> names = {"fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16"};
  for (const Scaling scaling : kAllScalings) names.emplace_back(name(scaling));
  return names;
}

std::optional<PrecisionConfig> parse_precision(const std::string& text) {
  PrecisionConfig precision;
  std::string base = text;
  for (const auto& [pattern, value] : config_names::kPattern) {
    const std::string ending = fmt::format(":{}", pattern);
    if (value == PrecisionPattern::kNone || !base.ends_with(ending)) continue;
    precision.pattern = value;
    base.resize(base.size() - ending.size());
    break;
  }
  if (base == "fp8") base = "delayed";
  if (base == "fp4") base = "nvfp4";
  if (const auto products = parse_fp32_products(base)) {
    precision.compute = DType::kF32;
    precision.fp32_products = *products;
  } else if (const auto dtype = parse_float_dtype(base)) {
    precision.compute = *dtype;
  } else {
    precision.recipe = parse_recipe(base);
    if (!precision.recipe) return std::nullopt;
  }
  return precision;
}

std::string precision_name(const PrecisionConfig& precision) {
  const bool has_parts = precision.compute == DType::kF32 && precision.fp32_products != Fp32Products::kFp32;
  std::string text(precision.recipe ? name(*precision.recipe)
                   : has_parts      ? name(precision.fp32_products)
                                    : name(precision.compute));
  for (const auto& [pattern, value] : config_names::kPattern) {
    if (value == precision.pattern && value != PrecisionPattern::kNone) text += fmt::format(":{}", pattern);
  }
  return text;
}

std::string without_alias(const std::string& name) {
  const auto precision = parse_precision(name);
  return precision ? precision_name(*precision) : name;
}

std::optional<RuleFormat> parse_low_format(const std::string& text) {
  if (const auto dtype = parse_float_dtype(text); dtype && *dtype != wide_of(*dtype)) return *dtype;
  if (const auto recipe = parse_recipe(text)) return *recipe;
  return std::nullopt;
}

}  // namespace mantissa
