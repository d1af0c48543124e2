#include "tools/config/precision_fields.h"

#include <fmt/core.h>

#include <utility>

namespace mantissa {
namespace {

// fp32 is read as the dtype: a layer override without an op must name one, and for an op it means the same as the rule.
const std::pair<std::string_view, OpSetting> kSettings[] = {
    {"low", CastRule::kLow}, {"fp32", DType::kF32},         {"bf16", DType::kBF16},
    {"fp16", DType::kF16},   {"widest", CastRule::kWidest}, {"as_given", CastRule::kAsGiven}};
constexpr const char* kSettingWords = "low, fp32, bf16, fp16, widest, as_given";
constexpr const char* kRecipeWords =
    "delayed, current, block, mxfp8, nvfp4 (with a format: delayed:e5m2, and so current, block, mxfp8)";

constexpr const char* kFp32ProductsWords = "fp32, tf32, bf16x3, bf16x6";

std::string setting_word(const OpSetting& setting) {
  if (setting == OpSetting(CastRule::kFp32)) return "fp32";
  if (const auto* recipe = std::get_if<Recipe>(&setting)) return name(*recipe);
  for (const auto& [word, value] : kSettings) {
    if (value == setting) return std::string(word);
  }
  return "?";
}

std::optional<Recipe> parse_recipe_node(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar ? parse_recipe(node.text) : std::nullopt;
}

std::optional<OpSetting> parse_setting(const ConfigNode& node) {
  for (const auto& [word, value] : kSettings) {
    if (node.kind == ConfigNode::Kind::kScalar && node.text == word) return value;
  }
  if (const auto recipe = parse_recipe_node(node)) return *recipe;
  return std::nullopt;
}

std::string op_words() {
  std::string words;
  for (int op = 0; op < kOpCount; ++op) words += (op == 0 ? "" : ", ") + std::string(name(static_cast<Op>(op)));
  return words;
}

std::optional<Op> parse_op_node(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar ? parse_op(node.text) : std::nullopt;
}

bool is_word(const ConfigNode& node, std::string_view word) {
  return node.kind == ConfigNode::Kind::kScalar && node.text == word;
}

// `nothing` for nothing, else a word that `parse` knows.
template <typename T>
ScalarField optional_field(std::optional<T>& target, const char* nothing, const std::string& words,
                           std::optional<T> (*parse)(std::string_view text)) {
  return {.expected = fmt::format("one of {}, {}", nothing, words),
          .get = [&target, nothing] { return target ? std::string(name(*target)) : std::string(nothing); },
          .set =
              [&target, nothing, parse](const ConfigNode& node) {
                const auto value = node.kind == ConfigNode::Kind::kScalar ? parse(node.text) : std::nullopt;
                const bool known = value || is_word(node, nothing);
                if (known) target = value;
                return known;
              }};
}

}  // namespace

ScalarField optional_op_setting_field(std::optional<OpSetting>& target) {
  return {.expected = fmt::format("one of auto, {}, {}", kSettingWords, kRecipeWords),
          .get = [&target] { return target ? setting_word(*target) : std::string("auto"); },
          .set =
              [&target](const ConfigNode& node) {
                const auto setting = parse_setting(node);
                const bool known = setting || is_word(node, "auto");
                if (known) target = setting;
                return known;
              }};
}

ScalarField op_field(Op& target) {
  return {.expected = "one of " + op_words(),
          .get = [&target] { return std::string(name(target)); },
          .set =
              [&target](const ConfigNode& node) {
                const auto op = parse_op_node(node);
                if (op) target = *op;
                return op.has_value();
              }};
}

ScalarField optional_op_field(std::optional<Op>& target) { return optional_field(target, "any", op_words(), parse_op); }

ScalarField optional_recipe_field(std::optional<Recipe>& target) {
  return optional_field(target, "none", kRecipeWords, parse_recipe);
}

ScalarField optional_product_field(std::optional<Product>& target) {
  return optional_field(target, "any", "fprop, dgrad, wgrad", parse_product);
}

ScalarField optional_role_field(std::optional<Role>& target) {
  return optional_field(target, "any", "activation, weight, gradient", parse_role);
}

ScalarField fp32_products_field(Fp32Products& target) {
  return {.expected = fmt::format("one of {}", kFp32ProductsWords),
          .get = [&target] { return std::string(name(target)); },
          .set =
              [&target](const ConfigNode& node) {
                const auto products =
                    node.kind == ConfigNode::Kind::kScalar ? parse_fp32_products(node.text) : std::nullopt;
                if (products) target = *products;
                return products.has_value();
              }};
}

ScalarField optional_fp32_products_field(std::optional<Fp32Products>& target) {
  return optional_field(target, "auto", kFp32ProductsWords, parse_fp32_products);
}

}  // namespace mantissa
