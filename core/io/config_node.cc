#include "core/io/config_node.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "core/base/check.h"
#include "core/io/config_parser.h"

namespace mantissa {
namespace {

const ConfigMember* find_member(const std::vector<ConfigMember>& members, std::string_view key) {
  const auto it = std::find_if(members.begin(), members.end(), [&](const ConfigMember& m) { return m.key == key; });
  return it == members.end() ? nullptr : &*it;
}

ConfigNode parse_override_value(const std::string& value, const std::string& origin) {
  ConfigNode node;
  constexpr std::string_view kOpen = "[{\"'", kClose = "]}\"'";
  const size_t kind = value.empty() ? std::string_view::npos : kOpen.find(value.front());
  if (kind != std::string_view::npos) {
    if (value.size() < 2 || value.back() != kClose[kind]) {
      throw ConfigError(
          fmt::format("{}: the value starts with {} but does not end with {}", origin, kOpen[kind], kClose[kind]));
    }
    node = parse_yaml(value, {.name = origin, .positions = ConfigSource::Positions::kOmit});
  } else {
    node.kind = ConfigNode::Kind::kScalar;
    node.text = value;
  }
  node.origin = origin;
  return node;
}

}  // namespace

const ConfigMember* ConfigNode::find(std::string_view key) const { return find_member(members, key); }

void apply_override(ConfigNode& root, const std::string& assignment) {
  const std::string origin = "command line: " + assignment;
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError(fmt::format("{}: expected key.sub=value, such as optimizer.lr=3e-4", origin));
  }
  const std::string path = assignment.substr(0, equals);
  ConfigNode* node = &root;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (key.empty()) throw ConfigError(fmt::format("{}: the key '{}' has an empty part", origin, path));
    if (node->kind == ConfigNode::Kind::kList) {
      throw ConfigError(fmt::format("{}: '{}' is a list; replace it whole: {}=[…]", origin, path.substr(0, begin - 1),
                                    path.substr(0, begin - 1)));
    }
    if (node->kind != ConfigNode::Kind::kMap) *node = {.kind = ConfigNode::Kind::kMap, .origin = origin};
    const ConfigMember* found = node->find(key);
    if (found == nullptr) {
      node->members.push_back({.key = key, .origin = origin, .value = {.origin = origin}});
      found = &node->members.back();
    }
    node = &node->members[static_cast<size_t>(found - node->members.data())].value;
    begin = end + 1;
  }
  *node = parse_override_value(assignment.substr(equals + 1), origin);
}

std::string describe(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return "nothing";
    case ConfigNode::Kind::kScalar:
      return node.quoted ? fmt::format("the text \"{}\"", node.text) : fmt::format("'{}'", node.text);
    case ConfigNode::Kind::kList:
      return "a list";
    case ConfigNode::Kind::kMap:
      return "a section";
  }
  return "nothing";
}

}  // namespace mantissa
