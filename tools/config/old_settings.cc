#include "tools/config/old_settings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config_reader.h"

namespace mantissa {
namespace {

// The old order of precedence.
enum Kind { kLayer, kOp, kLayerOp, kOperands, kOperand, kProducts, kLayerProducts, kLayerOpProducts };

// A rule equivalent to an entry of precision.ops or precision.layers.
struct MovedRule {
  Kind kind = kOp;
  int64_t literals = 0;  // characters of the pattern but wildcards and dots: within a kind, more took precedence
  std::vector<std::pair<std::string, std::string>> members{};

  const std::string& format() const { return members.back().second; }
};

ConfigNode* find(ConfigNode& node, std::string_view key) {
  const auto found = std::ranges::find(node.members, key, &ConfigMember::key);
  return found == node.members.end() ? nullptr : &found->value;
}

// The keys of an entry of precision.layers that say where it applies.
constexpr std::string_view kPlaces[] = {"match", "op", "product", "role"};

bool means_nothing(std::string_view text) { return text == "any" || text == "auto" || text == "none"; }

// The text of a setting; empty if it is absent or has the value that means nothing.
std::string text_of(const ConfigNode& node, std::string_view key) {
  const ConfigMember* const member = node.find(key);
  return member == nullptr || means_nothing(member->value.text) ? "" : member->value.text;
}

void add_layer(const ConfigNode& layer, std::vector<MovedRule>& rules) {
  MovedRule rule;
  for (const std::string_view key : kPlaces) {
    if (const std::string text = text_of(layer, key); !text.empty()) rule.members.emplace_back(key, text);
  }
  rule.literals =
      std::ranges::count_if(text_of(layer, "match"), [](char c) { return c != '*' && c != '?' && c != '.'; });
  const bool has_op = !text_of(layer, "op").empty(), has_product = !text_of(layer, "product").empty(),
             has_role = !text_of(layer, "role").empty();
  const auto add = [&](const char* key, Kind kind) {
    const std::string format = text_of(layer, key);
    if (format.empty()) return;
    rules.push_back(rule);
    rules.back().kind = kind;
    rules.back().members.emplace_back("format", format);
  };
  add(text_of(layer, "format").empty() ? "dtype" : "format", has_product && has_role   ? kOperand
                                                             : has_product || has_role ? kOperands
                                                             : has_op                  ? kLayerOp
                                                                                       : kLayer);
  add("fp32_products", has_op ? kLayerOpProducts : kLayerProducts);
}

// Whether precision.ops or precision.layers is as a program printed it where no override was set.
bool says_nothing(const ConfigMember& member) {
  using Kind = ConfigNode::Kind;
  const ConfigNode& value = member.value;
  if (value.kind == Kind::kNull) return true;
  const auto is_unset = [](const ConfigMember& format) {
    return format.value.kind == Kind::kScalar && means_nothing(format.value.text);
  };
  if (member.key == "ops") return value.kind == Kind::kMap && std::ranges::all_of(value.members, is_unset);
  const auto is_idle = [&](const ConfigMember& one) {
    const bool is_format = one.key == "dtype" || one.key == "fp32_products";
    return is_format ? is_unset(one) : std::ranges::count(kPlaces, one.key) > 0;
  };
  return value.kind == Kind::kList && std::ranges::all_of(value.items, [&](const ConfigNode& layer) {
           return layer.kind == Kind::kMap && std::ranges::all_of(layer.members, is_idle);
         });
}

// In the order in which rules replace each other as the old settings did.
std::vector<MovedRule> moved_rules(const ConfigNode& precision) {
  std::vector<MovedRule> rules;
  const auto add_op = [&rules](const std::string& op, const std::string& format, Kind kind) {
    if (!format.empty()) rules.push_back({.kind = kind, .members = {{"op", op}, {"format", format}}});
  };
  if (const ConfigMember* const ops = precision.find("ops")) {
    for (const ConfigMember& op : ops->value.members) add_op(op.key, text_of(ops->value, op.key), kOp);
  }
  if (const ConfigMember* const layers = precision.find("layers")) {
    for (const ConfigNode& layer : layers->value.items) add_layer(layer, rules);
  }
  // fp32_products was a separate setting; a rule with format fp32 now replaces it.
  const bool has_fp32 = std::ranges::count(rules, "fp32", &MovedRule::format) > 0;
  const std::string products = text_of(precision, "fp32_products");
  if (has_fp32 && products != "fp32") add_op("linear", products, kProducts);
  std::ranges::stable_sort(rules, {}, [](const MovedRule& rule) { return std::pair(rule.kind, rule.literals); });
  return rules;
}

ConfigNode to_node(const MovedRule& rule, const std::string& origin) {
  ConfigNode node{.kind = ConfigNode::Kind::kMap, .origin = origin};
  for (const auto& [key, value] : rule.members) {
    node.members.push_back({key, origin, {.kind = ConfigNode::Kind::kScalar, .origin = origin, .text = value}});
  }
  return node;
}

[[noreturn]] void refuse(const std::vector<MovedRule>& rules, const std::string& path, const std::string& origin,
                         bool has_rules) {
  std::vector<std::string> texts;
  for (const MovedRule& rule : rules) {
    std::vector<std::string> members;
    for (const auto& [key, value] : rule.members) members.push_back(key + ": " + format_text(value));
    texts.push_back(fmt::format("{{{}}}", fmt::join(members, ", ")));
  }
  std::string list = fmt::format("\n  rules:\n    - {}", fmt::join(texts, "\n    - "));
  if (rules.empty()) list = "\n  rules: [{match: \"blocks.0.*\", format: fp32}]  for example";
  if (!rules.empty() && origin.starts_with("command line") && path == "precision") {
    list = fmt::format(" 'precision.rules=[{}]'", fmt::join(texts, ", "));
  }
  throw ConfigError(
      fmt::format("{0}: {1}.ops and {1}.layers are now {1}.rules, an ordered list in which the last match wins; "
                  "write{3}{2}",
                  origin, path, list, has_rules ? ", before the rules that are there," : ""));
}

// `path`: "precision", or of a phase or level.
void replace_overrides(ConfigNode& precision, const std::string& path, OldSettings mode) {
  const auto is_old = [](const ConfigMember& member) { return member.key == "ops" || member.key == "layers"; };
  const bool says_something = std::ranges::any_of(
      precision.members, [&](const ConfigMember& member) { return is_old(member) && !says_nothing(member); });
  const auto old = std::ranges::find_if(precision.members, is_old);
  if (old == precision.members.end()) return;
  const std::string origin = old->origin;
  const std::vector<MovedRule> rules = moved_rules(precision);
  // No such rules exist beside a pattern, which was one of the overrides, or for exact products without a dtype.
  const bool has_twin = text_of(precision, "pattern").empty() && std::ranges::none_of(rules, [](const MovedRule& rule) {
                          return rule.kind > kProducts && rule.format() == "fp32";
                        });
  const bool has_rules = find(precision, "rules") != nullptr;
  if (says_something && (mode == OldSettings::kRefuse || rules.empty() || !has_twin)) {
    refuse(rules, path, origin, has_rules);
  }
  std::erase_if(precision.members, is_old);
  if (mode == OldSettings::kRefuse || has_rules) return;
  ConfigNode list{.kind = ConfigNode::Kind::kList, .origin = origin};
  for (const MovedRule& rule : rules) list.items.push_back(to_node(rule, origin));
  precision.members.push_back({"rules", origin, std::move(list)});
}

void rename(ConfigNode& section, std::string_view from, const char* to) {
  if (section.find(to) != nullptr) return;
  for (ConfigMember& member : section.members) {
    if (member.key == from) member.key = to;
  }
}

}  // namespace

void replace_old_settings(ConfigNode& root, OldSettings mode) {
  if (ConfigNode* const optimizer = find(root, "optimizer")) rename(*optimizer, "moment_dtype", "first_moment");
  if (ConfigNode* const test = find(root, "test")) {
    rename(*test, "gradients", "faults");
    if (ConfigNode* const faults = find(*test, "faults")) {
      for (ConfigNode& fault : faults->items) rename(fault, "value", "kind");
    }
  }
  ConfigNode* const precision = find(root, "precision");
  if (precision == nullptr) return;
  if (ConfigNode* const tf32 = find(*precision, "tf32"); tf32 != nullptr && mode == OldSettings::kRead) {
    tf32->text = tf32->text == "true" ? "tf32" : "fp32";
    rename(*precision, "tf32", "fp32_products");
  }
  replace_overrides(*precision, "precision", mode);
  const auto replace_in = [mode](ConfigNode* list, const char* path) {
    if (list == nullptr) return;
    for (size_t i = 0; i < list->items.size(); ++i) {
      replace_overrides(list->items[i], fmt::format("{}[{}]", path, i), mode);
    }
  };
  replace_in(find(*precision, "schedule"), "precision.schedule");
  ConfigNode* const adaptive = find(*precision, "adaptive");
  replace_in(adaptive != nullptr ? find(*adaptive, "levels") : nullptr, "precision.adaptive.levels");
}

}  // namespace mantissa
