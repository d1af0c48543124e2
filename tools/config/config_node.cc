// The nodes of config_reader.h.

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/check.h"
#include "tools/config/config_reader.h"

namespace mantissa {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20, kMaxTextBytes = size_t{1} << 16;

// A source of YAML text. Without positions, messages name it alone: a command line is short and quoted whole.
struct Source {
  std::string name;
  bool shows_positions = true;
};

// Builds the tree from yaml-cpp's events. Its errors pass through the parser, which is exception-safe.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const Source& source) : source_(source) {}

  ConfigNode root;
  bool has_value = false;
  std::string last_origin;  // of the last complete key or value

  std::string origin(const YAML::Mark& mark) const {
    if (!source_.shows_positions) return source_.name;
    if (mark.is_null()) return source_.name + ":1:1";
    return fmt::format("{}:{}:{}", source_.name, mark.line + 1, mark.column + 1);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { place(mark, "", anchor, {}); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are not supported; a text that starts with * must be quoted");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    place(mark, tag, anchor, {.kind = ConfigNode::Kind::kScalar, .text = value, .quoted = tag == "!"});
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_.push_back({place(mark, tag, anchor, {.kind = ConfigNode::Kind::kList}), {}, {}, false});
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_.push_back({place(mark, tag, anchor, {.kind = ConfigNode::Kind::kMap}), {}, {}, false});
  }

  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  struct Open {
    ConfigNode* node;  // stays valid: its parent grows only after it is closed
    std::string key;
    std::string key_origin;
    bool has_key;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& why) const {
    throw ConfigError("{}: {}", origin(mark), why);
  }

  ConfigNode* place(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, ConfigNode node) {
    if (anchor != YAML::NullAnchor) fail(mark, "anchors (&name) are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, fmt::format("tags ({}) are not supported", tag));
    if (node.text.size() > kMaxTextBytes) {
      fail(mark, fmt::format("a text of {} bytes, the longest that a setting may have is {}", node.text.size(),
                             kMaxTextBytes));
    }
    if (node.text.find('\0') != std::string::npos)
      fail(mark, "a text with a NUL byte (\\0), which no setting may have");
    last_origin = node.origin = origin(mark);
    if (open_.empty()) {
      root = std::move(node);
      has_value = true;
      return &root;
    }
    Open& parent = open_.back();
    if (parent.node->kind == ConfigNode::Kind::kList) return &parent.node->items.emplace_back(std::move(node));
    if (!parent.has_key) {
      take_key(mark, parent, node);
      return nullptr;  // a key is a scalar and has no content
    }
    parent.has_key = false;
    parent.node->members.push_back({std::move(parent.key), std::move(parent.key_origin), std::move(node)});
    return &parent.node->members.back().value;
  }

  void take_key(const YAML::Mark& mark, Open& parent, const ConfigNode& key) const {
    if (key.kind != ConfigNode::Kind::kScalar) fail(mark, "expected a key, got " + describe(key));
    if (const ConfigMember* first = parent.node->find(key.text)) {
      fail(mark, fmt::format("duplicate key '{}', first given at {}; remove one", key.text, first->origin));
    }
    parent.key = key.text;
    parent.key_origin = key.origin;
    parent.has_key = true;
  }

  const Source& source_;
  std::vector<Open> open_;
};

// " (line 3 is indented by a tab: ...)", of the first such line up to this one; yaml-cpp does not say so.
std::string tab_hint(const std::string& text, int last_line) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; number <= last_line && std::getline(lines, line); ++number) {
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line[first] == '\t') {
      return fmt::format(" (line {} is indented by a tab: indent with spaces)", number);
    }
  }
  return "";
}

// Any one YAML value.
ConfigNode parse_yaml(const std::string& text, const Source& source) {
  // Without the added line, yaml-cpp 0.7 closes an open quote at the end of a text with a final newline, and so
  // swallows all keys after the quote.
  std::istringstream stream(text + "\n#");
  TreeBuilder builder(source), rest(source);
  builder.last_origin = source.name;
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    const bool has_second = parser.HandleNextDocument(rest);
    require<ConfigError>(!has_second, "{}: expected one YAML document, got a second one", rest.root.origin);
  } catch (const YAML::Exception& error) {
    require<ConfigError>(error.msg != YAML::ErrorMsg::EOF_IN_SCALAR,
                         "{}: not valid YAML: a quote is not closed, somewhere after {}", builder.origin(error.mark),
                         builder.last_origin);
    throw ConfigError("{}: not valid YAML: {}{}", builder.origin(error.mark), error.msg,
                      tab_hint(text, error.mark.line + 2));
  }
  if (!builder.has_value) builder.root.origin = builder.origin(YAML::Mark::null_mark());
  return std::move(builder.root);
}

ConfigNode parse_override_value(const std::string& value, const std::string& origin) {
  ConfigNode node{.kind = ConfigNode::Kind::kScalar, .text = value};
  constexpr std::string_view kOpen = "[{\"'", kClose = "]}\"'";
  if (const size_t kind = value.empty() ? std::string_view::npos : kOpen.find(value.front()); kind < kOpen.size()) {
    require<ConfigError>(value.size() > 1 && value.back() == kClose[kind],
                         "{}: the value starts with {} but does not end with {}", origin, kOpen[kind], kClose[kind]);
    node = parse_yaml(value, {.name = origin, .shows_positions = false});
  }
  node.origin = origin;
  return node;
}

// A section keeps the members that `from` does not name, as with dotted keys.
void merge(ConfigNode from, ConfigNode& into) {
  if (from.kind != ConfigNode::Kind::kMap || into.kind != ConfigNode::Kind::kMap) {
    into = std::move(from);
    return;
  }
  for (ConfigMember& member : from.members) {
    if (ConfigMember* const older = into.find(member.key)) {
      older->origin = member.origin;
      merge(std::move(member.value), older->value);
    } else {
      into.members.push_back(std::move(member));
    }
  }
}

}  // namespace

const ConfigMember* ConfigNode::find(std::string_view key) const {
  const auto it = std::ranges::find(members, key, &ConfigMember::key);
  return it == members.end() ? nullptr : &*it;
}

const ConfigNode* ConfigNode::below(std::string_view path) const {
  const ConfigNode* node = this;
  while (node != nullptr && !path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    const ConfigMember* const member = node->find(key);
    node = member != nullptr ? &member->value : nullptr;
    path.remove_prefix(std::min(path.size(), key.size() + 1));
  }
  return node;
}

ConfigNode parse_config_text(const std::string& text, const std::string& source) {
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    throw ConfigError("{}:{}: a NUL byte at offset {}: expected YAML as UTF-8 text", source,
                      1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(nul), '\n'), nul);
  }
  ConfigNode root = parse_yaml(text, {.name = source});
  require<ConfigError>(root.kind != ConfigNode::Kind::kNull,
                       "{}: the configuration is empty; see configs/reference.yaml", root.origin);
  require<ConfigError>(root.kind == ConfigNode::Kind::kMap, "{}: expected sections such as 'model:', got {}",
                       root.origin, describe(root));
  return root;
}

namespace {

// "; did you mean 'configs/quickstart.yaml'?" for a file of the same folder with nearly this name; else empty.
std::string similar_file(const std::string& path) {
  const std::filesystem::path wanted(path), folder = wanted.parent_path();
  const std::string name = wanted.filename().string();
  size_t best_distance = name.size() <= 7 ? 3 : 4;
  std::string best;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string other = it->path().filename().string();
    const size_t distance = edit_distance(name, other);
    if (distance > best_distance || (distance == best_distance && other >= best) || it->is_directory(ignored)) continue;
    best_distance = distance;
    best = other;
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", (folder / best).string());
}

}  // namespace

ConfigNode parse_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  // A folder opens but cannot be read.
  if (!file || file.read(text.data(), static_cast<std::streamsize>(text.size())).bad()) {
    const int error = errno;
    throw ConfigError("{}: cannot read the configuration: {}{}", path, std::strerror(error),
                      error == ENOENT ? similar_file(path) : "");
  }
  text.resize(static_cast<size_t>(file.gcount()));
  require<ConfigError>(
      text.size() <= kMaxFileBytes,
      "{}: larger than {} bytes: expected a configuration; patterns in data.train stand for many files", path,
      kMaxFileBytes);
  return parse_config_text(text, path);
}

void apply_override(ConfigNode& root, const std::string& assignment) {
  require<ConfigError>(assignment.size() <= kMaxTextBytes,
                       "command line: {}…: {} bytes, the longest that a setting may have is {}",
                       assignment.substr(0, 40), assignment.size(), kMaxTextBytes);
  const std::string origin = "command line: " + assignment;
  const size_t equals = assignment.find('=');
  require<ConfigError>(
      equals != std::string::npos && equals > 0,
      "{}: expected key.sub=value, such as optimizer.lr=3e-4; several values of one option have commas: "
      "fp32,bf16",
      origin);
  const std::string path = assignment.substr(0, equals);
  ConfigNode* node = &root;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    require<ConfigError>(!key.empty(), "{}: the key '{}' has an empty part", origin, path);
    require<ConfigError>(node->kind != ConfigNode::Kind::kList, "{}: '{}' is a list; replace it whole: {}=[…]", origin,
                         path.substr(0, std::max<size_t>(begin, 1) - 1),
                         path.substr(0, std::max<size_t>(begin, 1) - 1));
    if (node->kind != ConfigNode::Kind::kMap) *node = {.kind = ConfigNode::Kind::kMap, .origin = origin};
    if (node->find(key) == nullptr)
      node->members.push_back({.key = key, .origin = origin, .value = {.origin = origin}});
    node = &node->find(key)->value;
    begin = end + 1;
  }
  merge(parse_override_value(assignment.substr(equals + 1), origin), *node);
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
