// A configuration as a tree of nodes that remember where they were written: file:line:column, or the command line.
//
// The YAML subset is strict: one document whose top is a map; no duplicate keys, anchors, aliases or tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

struct ConfigMember;

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string origin{};                 // "configs/adaptive.yaml:3:5", or "command line: optimizer.lr=3e-4"
  std::string text{};                   // of a scalar
  bool quoted = false;                  // a quoted scalar is a text, never a number or a bool
  std::vector<ConfigNode> items{};      // of a list
  std::vector<ConfigMember> members{};  // of a map, in the order of the file

  // nullptr if the map has no such key.
  const ConfigMember* find(std::string_view key) const;
  ConfigMember* find(std::string_view key);
};

struct ConfigMember {
  std::string key{};
  std::string origin{};  // of the key
  ConfigNode value{};
};

// ConfigError naming file, line and column if it is not such a document, or is larger than 1 MiB, or has a NUL byte or
// a text of more than 64 KiB.
ConfigNode parse_config_file(const std::string& path);
// The same for text in memory; `source` replaces the file name in messages.
ConfigNode parse_config_text(const std::string& text, const std::string& source);

// Applies "key.sub=value". A value that starts with [ { " or ' is read as YAML; any other text is taken literally, so
// that globs and prompts need no quoting. Makes missing sections; the value replaces that of the file, but a section
// {a: 1} changes only the keys that it names.
void apply_override(ConfigNode& root, const std::string& assignment);

// The node as messages name what came: "a list", "the text \"abc\"".
std::string describe(const ConfigNode& node);

}  // namespace mantissa
