#include "tools/config/precision_fields.h"

#include <utility>

namespace mantissa {
namespace {

// fp32 is read as the dtype: a layer override without an op must name one, and for an op it means the same as the rule.
const std::pair<std::string_view, OpSetting> kSettings[] = {
    {"low", CastRule::kLow}, {"fp32", DType::kF32},         {"bf16", DType::kBF16},
    {"fp16", DType::kF16},   {"widest", CastRule::kWidest}, {"as_given", CastRule::kAsGiven}};
constexpr const char* kSettingWords = "low, fp32, bf16, fp16, widest, as_given";

std::string setting_word(const OpSetting& setting) {
  if (setting == OpSetting(CastRule::kFp32)) return "fp32";
  for (const auto& [word, value] : kSettings) {
    if (value == setting) return std::string(word);
  }
  return "?";
}

std::optional<OpSetting> parse_setting(const ConfigNode& node) {
  for (const auto& [word, value] : kSettings) {
    if (node.kind == ConfigNode::Kind::kScalar && node.text == word) return value;
  }
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

}  // namespace

ScalarField op_setting_field(OpSetting& target) {
  return {.expected = std::string("one of ") + kSettingWords,
          .get = [&target] { return setting_word(target); },
          .set =
              [&target](const ConfigNode& node) {
                const auto setting = parse_setting(node);
                if (setting) target = *setting;
                return setting.has_value();
              }};
}

ScalarField optional_op_setting_field(std::optional<OpSetting>& target) {
  return {.expected = std::string("one of auto, ") + kSettingWords,
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

ScalarField optional_op_field(std::optional<Op>& target) {
  return {.expected = "one of any, " + op_words(),
          .get = [&target] { return target ? std::string(name(*target)) : std::string("any"); },
          .set =
              [&target](const ConfigNode& node) {
                const auto op = parse_op_node(node);
                const bool known = op || is_word(node, "any");
                if (known) target = op;
                return known;
              }};
}

}  // namespace mantissa
