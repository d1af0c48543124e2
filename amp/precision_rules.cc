#include "amp/precision_rules.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr std::pair<std::string_view, CastRule> kCastRules[] = {{"low", CastRule::kLow},
                                                                {"fp32", CastRule::kFp32},
                                                                {"widest", CastRule::kWidest},
                                                                {"as_given", CastRule::kAsGiven}};

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> components;
  for (const auto component : std::views::split(path, '.')) components.emplace_back(component.begin(), component.end());
  return components;
}

// Whether the pattern matches the path or one of its leading parts.
bool matches_prefix(std::span<const std::string> pattern, std::span<const std::string> path) {
  if (pattern.empty()) return true;
  if (pattern.front() == "**") {
    return matches_prefix(pattern.subspan(1), path) || (!path.empty() && matches_prefix(pattern, path.subspan(1)));
  }
  return !path.empty() && fnmatch(pattern.front().c_str(), path.front().c_str(), 0) == 0 &&
         matches_prefix(pattern.subspan(1), path.subspan(1));
}

// Why an op computes in fp32 whatever a rule says; nullptr for ops that obey.
const char* why_always_fp32(Op op) {
  switch (op) {
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return "the op that takes a norm's result rounds it; give the format to that op";
    case Op::kCrossEntropy:
      return "the loss reads the logits as they are; give the format to the linear op of the head";
    default:
      return nullptr;
  }
}

// Why the rule makes no sense; empty where it does.
std::string rejection_reason(const PrecisionRule& rule) {
  if (!rule.format) return fmt::format("expected a format, one of {}, {}", kPlainFormatNames, kRecipeNames);
  const RuleFormat& format = *rule.format;
  const auto* const dtype = std::get_if<DType>(&format);
  const auto* const cast = std::get_if<CastRule>(&format);
  const bool is_recipe = std::holds_alternative<Recipe>(format);
  const bool is_low = cast != nullptr && *cast == CastRule::kLow;
  if (format == RuleFormat(DType::kF64) && rule.source.empty()) {
    return "fp64 is for whole models; give precision.compute=fp64";
  }
  if (dtype != nullptr && !is_floating(*dtype)) return fmt::format("expected fp32, bf16 or fp16, got {}", *dtype);
  if (rule.names_operands()) {
    if (rule.op.value_or(Op::kLinear) != Op::kLinear) return "only linear layers have products and roles";
    if (rule.product && rule.role && !multiplies(*rule.product, *rule.role)) {
      return "this product has no such operand: fprop multiplies activations and weights, dgrad gradients and weights, "
             "wgrad gradients and activations";
    }
    return is_recipe || is_low ? "" : "an operand has a recipe, or low: it is not rounded further";
  }
  if (is_recipe || std::holds_alternative<Fp32Products>(format)) {
    return rule.op.value_or(Op::kLinear) == Op::kLinear ? "" : "only linear layers have this format";
  }
  if (!rule.op) return cast == nullptr ? "" : "this format needs an op; without one expected a dtype or a recipe";
  const char* const fixed = why_always_fp32(*rule.op);
  const bool is_fp32 = format == RuleFormat(DType::kF32) || format == RuleFormat(CastRule::kFp32);
  return fixed != nullptr && !is_fp32 ? fmt::format("this op always computes in fp32: {}", fixed) : "";
}

void set(Precision& precision, Op op, const RuleFormat& format) {
  const auto index = static_cast<size_t>(op);
  const auto* const cast = std::get_if<CastRule>(&format);
  precision.forced[index].reset();
  if (cast != nullptr) {
    precision.rules[index] = *cast;
  } else if (format == RuleFormat(DType::kF32)) {
    precision.rules[index] = CastRule::kFp32;  // not forced: no scope of another dtype lowers it
  } else {
    precision.rules[index] = CastRule::kLow;
    precision.forced[index] = std::get<DType>(format);
  }
}

void set_operands(Precision& precision, const PrecisionRule& rule, const Recipe* recipe) {
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      if (rule.product.value_or(product) != product || rule.role.value_or(role) != role) continue;
      precision.linear.set(product, role, recipe ? std::optional(format_for(*recipe, role)) : std::nullopt);
    }
  }
}

void require_low_blocks(int64_t at_each_end, int64_t model_blocks) {
  if (2 * at_each_end < model_blocks) return;
  throw ConfigError(
      fmt::format("precision.pattern: first_last_k_high with precision.pattern_blocks = {} at each end leaves none of "
                  "the model's {} "
                  "blocks low: give fewer, a model of more layers (at least 3), or another precision.pattern",
                  at_each_end, model_blocks));
}

// Layers kept high are not rounded: they compute in `compute` if there is a recipe, else in fp32.
std::vector<PrecisionRule> rules_of_pattern(const PrecisionConfig& config, int64_t model_blocks) {
  const DType high = config.recipe ? config.compute : DType::kF32;
  std::vector<PrecisionRule> rules;
  switch (config.pattern) {
    case PrecisionPattern::kNone:
      break;
    case PrecisionPattern::kAllLow:
      if (config.recipe) rules.push_back({.match = "head", .op = Op::kLinear, .format = *config.recipe});
      break;
    case PrecisionPattern::kFp32EndsLowCore:
      rules = {{.match = "token_embedding", .format = DType::kF32}, {.match = "head", .format = DType::kF32}};
      break;
    case PrecisionPattern::kAttentionHigh:
      rules = {{.match = "blocks.*.attention", .format = high}};
      break;
    case PrecisionPattern::kFirstLastKHigh:
      require_low_blocks(config.pattern_blocks, model_blocks);
      for (int64_t block = 0; block < config.pattern_blocks; ++block) {
        rules.push_back({.match = fmt::format("blocks.{}", block), .format = high});
        rules.push_back({.match = fmt::format("blocks.{}", model_blocks - 1 - block), .format = high});
      }
      break;
  }
  return rules;
}

}  // namespace

TensorFormat format_for(Recipe recipe, Role role) {
  if (recipe.format) return {*recipe.format, recipe.scaling};
  if (recipe.scaling == Scaling::kTwoLevel) return {Format::kE2M1, recipe.scaling};
  const bool one_scale = block_length(recipe.scaling) == 0;
  return {one_scale && role == Role::kGradient ? Format::kE5M2 : Format::kE4M3, recipe.scaling};
}

std::string name(Recipe recipe) {
  std::string text(name(recipe.scaling));
  if (recipe.format) text += ":" + std::string(info(*recipe.format).name);
  return text;
}

std::optional<Recipe> parse_recipe(std::string_view text) {
  const size_t colon = text.find(':');
  for (const Scaling scaling : kAllScalings) {
    if (name(scaling) != text.substr(0, colon)) continue;
    if (colon == std::string_view::npos) return Recipe{.scaling = scaling, .format = std::nullopt};
    for (const Format format : kAllFormats) {
      const bool is_named = info(format).name == text.substr(colon + 1);
      if (is_named && refusal({format, scaling}).empty()) return Recipe{.scaling = scaling, .format = format};
    }
  }
  return std::nullopt;
}

LayerPattern::LayerPattern(std::string_view text) : components_(split(text)) {
  if (components_.empty() || std::ranges::any_of(components_, [](const auto& c) { return c.empty(); })) {
    throw ConfigError(
        fmt::format("[layer_pattern] expected names between single dots, such as blocks.*.mlp, got '{}'", text));
  }
}

bool LayerPattern::matches(std::string_view layer_path) const { return matches_prefix(components_, split(layer_path)); }

const char* const kRecipeNames =
    "delayed, current, block, mxfp8, nvfp4 (with a format: delayed:e5m2, and so current, block, mxfp8)";
const char* const kPlainFormatNames = "fp32, bf16, fp16, low, widest, as_given, tf32, bf16x3, bf16x6";

std::string name(const RuleFormat& format) {
  if (const auto* const recipe = std::get_if<Recipe>(&format)) return name(*recipe);
  if (const auto* const dtype = std::get_if<DType>(&format)) return fmt::format("{}", *dtype);
  if (const auto* const products = std::get_if<Fp32Products>(&format)) return std::string(name(*products));
  const auto* const found = std::ranges::find(kCastRules, std::get<CastRule>(format), [](auto& e) { return e.second; });
  return std::string(found->first);
}

std::optional<RuleFormat> parse_rule_format(std::string_view text) {
  if (const auto dtype = parse_float_dtype(text)) return *dtype;
  if (const auto products = parse_fp32_products(text)) return *products;
  if (const auto recipe = parse_recipe(text)) return *recipe;
  const auto* const found = std::ranges::find(kCastRules, text, [](auto& entry) { return entry.first; });
  return found == std::end(kCastRules) ? std::nullopt : std::optional<RuleFormat>(found->second);
}

std::string describe(const PrecisionRule& rule) {
  std::string text = "{";
  const auto add = [&text](const char* key, std::string_view value) {
    text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", key, value);
  };
  const bool has_wildcard = rule.match.find_first_of("*?[") != std::string::npos;
  if (rule.match != "**") add("match", has_wildcard ? fmt::format("\"{}\"", rule.match) : rule.match);
  if (rule.op) add("op", name(*rule.op));
  if (rule.product) add("product", name(*rule.product));
  if (rule.role) add("role", name(*rule.role));
  if (rule.format) add("format", name(*rule.format));
  return text + "}";
}

void validate(const PrecisionRule& rule) {
  const LayerPattern pattern(rule.match);
  if (const std::string reason = rejection_reason(rule); !reason.empty()) {
    throw ConfigError(fmt::format("[precision] rule {}: {}", describe(rule), reason));
  }
}

Precision unruled_precision() {
  Precision precision{.enabled = true};
  for (int op = 0; op < kOpCount; ++op) precision.rules[static_cast<size_t>(op)] = kOps[op].rule;
  return precision;
}

void apply(const PrecisionRule& rule, Precision& precision) {
  const RuleFormat& format = *rule.format;
  if (const auto* const products = std::get_if<Fp32Products>(&format)) {
    precision.fp32_products = *products;
    return;
  }
  const auto* const recipe = std::get_if<Recipe>(&format);
  const bool is_linear = rule.op.value_or(Op::kLinear) == Op::kLinear;
  if (is_linear) set_operands(precision, rule, recipe);
  if (rule.names_operands()) return;
  if (recipe != nullptr) return set(precision, Op::kLinear, CastRule::kLow);
  const bool is_fp32 = format == RuleFormat(DType::kF32);
  if (is_linear && is_fp32) precision.fp32_products = Fp32Products::kFp32;
  if (rule.op) return set(precision, *rule.op, format);
  precision.low = std::get<DType>(format);
  // fp32 set for single layers is final: no AutocastScope lowers them.
  for (const Op op : {Op::kLinear, Op::kAttention}) {
    set(precision, op, is_fp32 && rule.match != "**" ? CastRule::kFp32 : CastRule::kLow);
  }
}

bool PrecisionConfig::uses_fp16() const {
  return compute == DType::kF16 ||
         std::ranges::any_of(rules, [](const PrecisionRule& rule) { return rule.format == RuleFormat(DType::kF16); });
}

void PrecisionConfig::leave_fp16() {
  if (compute == DType::kF16) compute = DType::kBF16;
  for (PrecisionRule& rule : rules) {
    if (rule.format == RuleFormat(DType::kF16)) rule.format = DType::kBF16;
  }
}

std::vector<PrecisionRule> expand(const PrecisionConfig& config, int64_t model_blocks) {
  std::vector<PrecisionRule> rules;
  const auto add = [&rules](const char* source, PrecisionRule rule) {
    rule.source = source;
    rules.push_back(std::move(rule));
  };
  add("precision.compute", {.format = config.compute});
  if (config.recipe) {
    add("precision.recipe", {.op = Op::kLinear, .format = *config.recipe});
    // The rounding of the logits reaches the loss at once.
    add("precision.recipe", {.match = "head", .op = Op::kLinear, .format = CastRule::kLow});
  }
  for (PrecisionRule& rule : rules_of_pattern(config, model_blocks)) add("precision.pattern", std::move(rule));
  if (config.fp32_products != Fp32Products::kFp32) {
    add("precision.fp32_products", {.op = Op::kLinear, .format = config.fp32_products});
  }
  rules.insert(rules.end(), config.rules.begin(), config.rules.end());
  return rules;
}

}  // namespace mantissa
