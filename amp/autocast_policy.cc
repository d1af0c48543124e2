#include "amp/autocast_policy.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"

namespace mantissa {
namespace {

// The layer of the logits, whose rounding reaches the loss at once: no recipe for the whole model is about it.
constexpr std::string_view kHead = "head";

constexpr std::pair<std::string_view, CastRule> kRules[] = {{"low", CastRule::kLow},
                                                            {"fp32", CastRule::kFp32},
                                                            {"widest", CastRule::kWidest},
                                                            {"as_given", CastRule::kAsGiven}};

// Why an op computes in fp32 whatever its setting says; nullptr for ops that obey it.
const char* why_always_fp32(Op op) {
  switch (op) {
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return "a norm's result is rounded to the dtype that its consumer computes in; set the consumer instead";
    case Op::kCrossEntropy:
      return "the loss reads the logits as they are; set the linear op of the head instead";
    default:
      return nullptr;
  }
}

std::string describe(const OpSetting& setting) {
  if (const auto* dtype = std::get_if<DType>(&setting)) return fmt::format("{}", *dtype);
  if (const auto* recipe = std::get_if<Recipe>(&setting)) return name(*recipe);
  for (const auto& [rule_name, rule] : kRules) {
    if (rule == std::get<CastRule>(setting)) return std::string(rule_name);
  }
  throw ContractError("[autocast] a rule has no name");
}

// `where` is the layer pattern of the setting, empty for all layers.
void require_effect(const OpSetting& setting, Op op, std::string_view where) {
  const char* const reason = why_always_fp32(op);
  if (!reason || setting == OpSetting(CastRule::kFp32) || setting == OpSetting(DType::kF32)) return;
  throw ConfigError(fmt::format("[autocast] {}{}{} must be fp32, got {}: it always computes in fp32, and {}", name(op),
                                where.empty() ? "" : " in layers matching ",
                                where.empty() ? "" : fmt::format("'{}'", where), describe(setting), reason));
}

void require_floating(const OpSetting& setting, std::string_view where) {
  const auto* dtype = std::get_if<DType>(&setting);
  if (dtype && !is_floating(*dtype)) {
    throw ConfigError(fmt::format("[autocast] {} must be fp32, bf16 or fp16, got {}", where, *dtype));
  }
}

// Only linear layers have operands that are rounded. `where` as in require_effect().
void require_linear(const OpSetting& setting, Op op, std::string_view where) {
  if (op == Op::kLinear || !std::holds_alternative<Recipe>(setting)) return;
  throw ConfigError(
      fmt::format("[autocast] {}{}{} must be low, widest, as_given, fp32, bf16 or fp16, got {}: only "
                  "linear layers round their operands to formats of 8 and 4 bits",
                  name(op), where.empty() ? "" : " in layers matching ",
                  where.empty() ? "" : fmt::format("'{}'", where), describe(setting)));
}

// What an override of products or roles may say.
void require_operands(const LayerOverride& layer) {
  if (!layer.names_operands()) return;
  if (layer.op && *layer.op != Op::kLinear) {
    throw ConfigError(
        fmt::format("[autocast] '{}' names a product or a role of {}: only linear layers have them; "
                    "give op: linear or any",
                    layer.pattern, name(*layer.op)));
  }
  if (layer.product && layer.role && !multiplies(*layer.product, *layer.role)) {
    throw ConfigError(
        fmt::format("[autocast] '{}' names the {} of {}, which multiplies no such thing: fprop is of "
                    "activations and weights, dgrad of gradients and weights, wgrad of gradients and "
                    "activations",
                    layer.pattern, name(*layer.role), name(*layer.product)));
  }
  if (layer.setting && !std::holds_alternative<Recipe>(*layer.setting) && *layer.setting != OpSetting(CastRule::kLow)) {
    throw ConfigError(
        fmt::format("[autocast] '{}' names a product or a role: expected a recipe, or low for what the "
                    "layer computes in, got {}",
                    layer.pattern, describe(*layer.setting)));
  }
}

// What an override of products of fp32 numbers may name, and that an override says anything.
void require_fp32_products(const LayerOverride& layer) {
  if (!layer.fp32_products) {
    if (layer.setting) return;
    throw ConfigError(
        fmt::format("[autocast] '{}' says nothing: expected a dtype, a rule, a recipe or how fp32 products "
                    "are made",
                    layer.pattern));
  }
  if (layer.op.value_or(Op::kLinear) == Op::kLinear && !layer.names_operands()) return;
  throw ConfigError(
      fmt::format("[autocast] '{}' sets fp32_products of {}: they are set for linear layers, all three "
                  "products at once; give op: linear or any, and no product or role",
                  layer.pattern, layer.names_operands() ? "single products or roles" : name(*layer.op)));
}

void require_layer_setting(const LayerOverride& layer, const OpSetting& setting) {
  require_floating(setting, layer.pattern);
  if (layer.op) require_effect(setting, *layer.op, layer.pattern);
  if (layer.op) require_linear(setting, *layer.op, layer.pattern);
  if (!layer.op && !layer.names_operands() && std::holds_alternative<CastRule>(setting)) {
    throw ConfigError(
        fmt::format("[autocast] '{}' names no op: expected a dtype or a recipe, got a rule", layer.pattern));
  }
}

// Writes an op's setting. fp32 is the rule and not a forced dtype, so that a scope of another dtype leaves it alone.
// Operands that are rounded come from what the region computes in.
void apply(const OpSetting& setting, Op op, Precision& precision) {
  const auto index = static_cast<size_t>(op);
  precision.forced[index].reset();
  if (const auto* rule = std::get_if<CastRule>(&setting)) {
    precision.rules[index] = *rule;
  } else if (std::holds_alternative<Recipe>(setting)) {
    precision.rules[index] = CastRule::kLow;
  } else if (std::get<DType>(setting) == DType::kF32) {
    precision.rules[index] = CastRule::kFp32;
  } else {
    precision.rules[index] = CastRule::kLow;
    precision.forced[index] = std::get<DType>(setting);
  }
}

}  // namespace

Op require_op(std::string_view text) {
  if (const std::optional<Op> op = parse_op(text)) return *op;
  std::string list;
  for (int index = 0; index < kOpCount; ++index) {
    list += fmt::format("{}{}", index ? ", " : "", name(static_cast<Op>(index)));
  }
  throw ConfigError(fmt::format("[autocast] expected an op ({}), got '{}'", list, text));
}

OpSetting require_op_setting(std::string_view text) {
  for (const auto& [rule_name, rule] : kRules) {
    if (text == rule_name) return rule;
  }
  if (const std::optional<DType> dtype = parse_float_dtype(text)) return *dtype;
  if (const std::optional<Recipe> recipe = parse_recipe(text)) return *recipe;
  throw ConfigError(
      fmt::format("[autocast] expected low, widest, as_given, fp32, bf16, fp16, or for linear layers delayed, current, "
                  "block, mxfp8 or nvfp4, got '{}'",
                  text));
}

AutocastPolicy::AutocastPolicy(AutocastConfig config) : config_(std::move(config)) {
  require_floating(config_.dtype, "dtype");
  uniform_.enabled = config_.enabled;
  uniform_.low = config_.dtype;
  uniform_.fp32_products = config_.fp32_products;
  for (int index = 0; index < kOpCount; ++index) {
    const Op op = static_cast<Op>(index);
    const OpSetting setting = config_.ops[static_cast<size_t>(index)].value_or(kOps[index].rule);
    require_floating(setting, name(op));
    require_effect(setting, op, "");
    require_linear(setting, op, "");
    apply(setting, op, uniform_);
  }
  for (const LayerOverride& layer : config_.layers) {
    require_fp32_products(layer);
    require_operands(layer);
    if (layer.setting) require_layer_setting(layer, *layer.setting);
    overrides_.push_back({LayerPattern(layer.pattern), layer});
  }
  std::stable_sort(overrides_.begin(), overrides_.end(), [](const Override& a, const Override& b) {
    return a.pattern.literal_length() < b.pattern.literal_length();
  });
  matched_.resize(overrides_.size());
  const auto& linear = config_.ops[static_cast<size_t>(Op::kLinear)];
  is_uniform_ = overrides_.empty() && config_.lifts.empty() && !config_.recipe &&
                !(linear && std::holds_alternative<Recipe>(*linear));
}

const Precision& AutocastPolicy::at(std::string_view layer_path) const {
  if (is_uniform_) return uniform_;  // a pass asks at every layer: no lock
  const std::lock_guard lock(mutex_);
  const auto known = layers_.find(layer_path);
  if (known != layers_.end()) return known->second;
  return layers_.emplace(layer_path, build(layer_path)).first->second;
}

Precision AutocastPolicy::build(std::string_view layer_path) const {
  Precision precision = uniform_;
  bool low_is_named = false;
  for (size_t index = 0; index < overrides_.size(); ++index) {
    const auto& [pattern, given] = overrides_[index];
    if (!pattern.matches(layer_path)) continue;
    matched_[index] = true;
    if (!given.setting || given.names_operands()) continue;
    if (given.op) {
      apply(*given.setting, *given.op, precision);
    } else if (const auto* dtype = std::get_if<DType>(&*given.setting)) {
      precision.low = *dtype;
      low_is_named = true;
    }
  }
  if (low_is_named && precision.low == DType::kF32) {
    for (size_t index = 0; index < precision.rules.size(); ++index) {
      if (precision.rules[index] == CastRule::kLow && !precision.forced[index])
        precision.rules[index] = CastRule::kFp32;
    }
  }
  precision.linear = build_linear(layer_path);
  precision.fp32_products = build_fp32_products(layer_path);
  if (const auto lifted = config_.lifts.find(layer_path); lifted != config_.lifts.end()) {
    lift(precision, lifted->second);
  }
  return precision;
}

Fp32Products AutocastPolicy::build_fp32_products(std::string_view layer_path) const {
  Fp32Products products = config_.fp32_products;
  for (const std::optional<Op> level : {std::optional<Op>(), std::optional(Op::kLinear)}) {
    for (const auto& [pattern, given] : overrides_) {
      if (given.op == level && given.fp32_products && pattern.matches(layer_path)) products = *given.fp32_products;
    }
  }
  return products;
}

LinearFormats AutocastPolicy::build_linear(std::string_view layer_path) const {
  LinearFormats formats;
  const auto apply_to = [&formats](const OpSetting& setting, std::optional<Product> only_product,
                                   std::optional<Role> only_role) {
    const auto* const recipe = std::get_if<Recipe>(&setting);
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) {
        if (only_product.value_or(product) != product || only_role.value_or(role) != role) continue;
        formats.set(product, role, recipe ? std::optional(format_for(*recipe, role)) : std::nullopt);
      }
    }
  };
  // Overrides of one level, from the least specific to the most specific.
  const auto apply_level = [&](const auto& is_of_level) {
    for (const auto& [pattern, given] : overrides_) {
      if (!given.setting || !is_of_level(given) || !pattern.matches(layer_path)) continue;
      apply_to(*given.setting, given.product, given.role);
    }
  };
  if (config_.recipe && layer_path != kHead) apply_to(*config_.recipe, {}, {});
  apply_level([](const LayerOverride& o) { return !o.op && !o.names_operands(); });
  if (const auto& setting = config_.ops[static_cast<size_t>(Op::kLinear)]) apply_to(*setting, {}, {});
  apply_level([](const LayerOverride& o) { return o.op == Op::kLinear && !o.names_operands(); });
  apply_level([](const LayerOverride& o) { return o.names_operands() && !(o.product && o.role); });
  apply_level([](const LayerOverride& o) { return o.product && o.role; });
  return formats;
}

std::vector<std::string> AutocastPolicy::unmatched_patterns() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> patterns;
  for (size_t index = 0; index < overrides_.size(); ++index) {
    if (!matched_[index]) patterns.push_back(overrides_[index].pattern.text());
  }
  return patterns;
}

}  // namespace mantissa
