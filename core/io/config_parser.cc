#include "core/io/config_parser.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/base/error.h"

namespace mantissa {
namespace {

// Builds the tree as yaml-cpp reports events. Errors are thrown from inside of the parser, which is exception-safe.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const ConfigSource& source) : source_(source) {}

  ConfigNode take() { return std::move(root_); }
  bool has_value() const { return has_value_; }
  // Of the last complete key or value.
  const std::string& last_origin() const { return last_origin_; }

  std::string origin(const YAML::Mark& mark) const {
    if (source_.positions == ConfigSource::Positions::kOmit) return source_.name;
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
    throw ConfigError(fmt::format("{}: {}", origin(mark), why));
  }

  ConfigNode* place(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, ConfigNode node) {
    if (anchor != YAML::NullAnchor) fail(mark, "anchors (&name) are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, fmt::format("tags ({}) are not supported", tag));
    node.origin = origin(mark);
    last_origin_ = node.origin;
    if (open_.empty()) {
      root_ = std::move(node);
      has_value_ = true;
      return &root_;
    }
    Open& parent = open_.back();
    if (parent.node->kind == ConfigNode::Kind::kList) return &parent.node->items.emplace_back(std::move(node));
    if (!parent.has_key) {
      take_key(mark, parent, node);
      return nullptr;  // a key is a scalar: nothing will be put into it
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

  const ConfigSource& source_;
  ConfigNode root_;
  std::string last_origin_ = source_.name;
  bool has_value_ = false;
  std::vector<Open> open_;
};

}  // namespace

ConfigNode parse_yaml(const std::string& text, const ConfigSource& source) {
  // Without the last line yaml-cpp 0.7 takes a quote that is never closed for closed, if the text ends with a newline,
  // and with it all keys that follow.
  std::istringstream stream(text + "\n#");
  TreeBuilder builder(source);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    ConfigNode root = builder.take();
    TreeBuilder rest(source);
    if (parser.HandleNextDocument(rest)) {
      throw ConfigError(fmt::format("{}: expected one YAML document, got a second one", rest.take().origin));
    }
    if (!builder.has_value()) root.origin = builder.origin(YAML::Mark::null_mark());
    return root;
  } catch (const YAML::Exception& error) {
    if (error.msg == YAML::ErrorMsg::EOF_IN_SCALAR) {
      throw ConfigError(fmt::format("{}: not valid YAML: a quote is not closed, somewhere after {}",
                                    builder.origin(error.mark), builder.last_origin()));
    }
    throw ConfigError(fmt::format("{}: not valid YAML: {}", builder.origin(error.mark), error.msg));
  }
}

ConfigNode parse_config_text(const std::string& text, const std::string& source) {
  ConfigNode root = parse_yaml(text, {.name = source});
  if (root.kind == ConfigNode::Kind::kNull) {
    throw ConfigError(fmt::format("{}: the configuration is empty; see configs/reference.yaml", root.origin));
  }
  if (root.kind != ConfigNode::Kind::kMap) {
    throw ConfigError(fmt::format("{}: expected sections such as 'model:', got {}", root.origin, describe(root)));
  }
  return root;
}

ConfigNode parse_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens but cannot be read.
  if (!file || !(text << file.rdbuf() || file.peek() == std::ifstream::traits_type::eof()) || file.bad()) {
    throw ConfigError(fmt::format("{}: cannot read the configuration: {}", path, std::strerror(errno)));
  }
  return parse_config_text(text.str(), path);
}

}  // namespace mantissa
