#include "core/io/config_reader.h"

#include <fmt/core.h>

#include <set>

#include "core/base/error.h"
#include "core/io/config_keys.h"

namespace mantissa {
namespace {

constexpr size_t kMaxReported = 20;

class Reader final : public ConfigVisitor {
 public:
  Reader(const ConfigNode& root, const ConfigKeys& keys, const ConfigSynonyms& synonyms)
      : keys_(keys), synonyms_(synonyms) {
    open_.push_back({&root, {}, ""});
  }

  ConfigOrigins finish() {
    report_unknown(open_.back());
    if (errors_.empty()) return std::move(origins_);
    std::string message;
    for (size_t i = 0; i < errors_.size() && i < kMaxReported; ++i) message += (i == 0 ? "" : "\n") + errors_[i];
    if (errors_.size() > kMaxReported) message += fmt::format("\n… and {} more", errors_.size() - kMaxReported);
    throw ConfigError(message);
  }

  void section(std::string_view key, const std::function<void()>& members) override {
    const ConfigNode* node = take(key);
    if (node == nullptr || node->kind == ConfigNode::Kind::kNull) return;  // "model:" with nothing below it is empty
    if (node->kind != ConfigNode::Kind::kMap) return wrong(key, *node, "a section with keys below it");
    read_members(*node, path(key), members);
  }

  void scalar(std::string_view key, const ScalarField& field) override {
    const ConfigNode* node = take(key);
    if (node != nullptr && !field.set(*node)) wrong(key, *node, field.expected);
  }

  void texts(std::string_view key, const TextListField& field) override {
    const ConfigNode* node = take(key);
    if (node == nullptr) return;
    std::vector<std::string> values;
    if (node->kind == ConfigNode::Kind::kScalar) {
      values.push_back(node->text);
    } else if (node->kind == ConfigNode::Kind::kList) {
      for (const ConfigNode& item : node->items) {
        if (item.kind != ConfigNode::Kind::kScalar) return wrong(key, item, "a list of texts");
        values.push_back(item.text);
      }
    } else {
      return wrong(key, *node, "a list of texts");
    }
    *field.target = std::move(values);
  }

  void list(std::string_view key, const ListField& field) override {
    const ConfigNode* node = take(key);
    if (node == nullptr) return;
    if (node->kind != ConfigNode::Kind::kList) return wrong(key, *node, "a list of sections");
    field.clear();
    for (size_t i = 0; i < node->items.size(); ++i) {
      const ConfigNode& item = node->items[i];
      field.append();
      if (item.kind != ConfigNode::Kind::kMap) {
        wrong(key, item, "a list of sections");
        continue;
      }
      const std::string element = fmt::format("{}[{}]", path(key), i);
      origins_[element] = item.origin;
      read_members(item, element, [&] { field.bind(i, *this); });
    }
  }

 private:
  struct Open {
    const ConfigNode* node;
    std::set<std::string, std::less<>> taken;
    std::string path;
  };

  std::string path(std::string_view key) const { return join_config_path(open_.back().path, key); }

  const ConfigNode* take(std::string_view key) {
    Open& section = open_.back();
    const ConfigMember* member = section.node->find(key);
    if (member == nullptr) return nullptr;
    section.taken.emplace(key);
    origins_[path(key)] = member->value.origin;
    return &member->value;
  }

  void read_members(const ConfigNode& node, const std::string& path, const std::function<void()>& members) {
    open_.push_back({&node, {}, path});
    members();
    report_unknown(open_.back());
    open_.pop_back();
  }

  void report_unknown(const Open& section) {
    for (const ConfigMember& member : section.node->members) {
      if (section.taken.contains(member.key)) continue;
      errors_.push_back(
          fmt::format("{}: {}", member.origin, explain_unknown(keys_, synonyms_, section.path, member.key)));
    }
  }

  void wrong(std::string_view key, const ConfigNode& node, const std::string& expected) {
    errors_.push_back(fmt::format("{}: {}: expected {}, got {}", node.origin, path(key), expected, describe(node)));
  }

  const ConfigKeys& keys_;
  const ConfigSynonyms& synonyms_;
  std::vector<Open> open_;
  ConfigOrigins origins_;
  std::vector<std::string> errors_;
};

}  // namespace

ConfigOrigins read_config(const ConfigNode& root, const ConfigBinding& bind, const ConfigSynonyms& synonyms) {
  const ConfigKeys keys = collect_config_keys(bind);
  Reader reader(root, keys, synonyms);
  bind(reader);
  return reader.finish();
}

}  // namespace mantissa
