#include "tools/config/config_reader.h"

#include <fmt/format.h>

#include <set>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr size_t kMaxReported = 20;  // errors

// Whether a plain scalar of this text reads back as the same text wherever it stands, also in a flow list.
bool safe_plain(std::string_view text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  constexpr std::string_view kReserved[] = {".", "..", "null", "Null", "NULL", "true", "false"};
  return !text.empty() && text.find_first_not_of(kSafe) == std::string::npos && text.front() != '-' &&
         std::find(std::begin(kReserved), std::end(kReserved), text) == std::end(kReserved);
}

std::string flow_list(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values) out += (out.empty() ? "" : ", ") + format_text(value);
  return "[" + out + "]";
}

// --- what to say about an unknown key

// "precision.rules[3]" to "precision.rules[]".
std::string without_indices(const std::string& path) {
  std::string out;
  bool inside = false;
  for (const char c : path) {
    if (c == ']') inside = false;
    if (!inside) out += c;
    if (c == '[') inside = true;
  }
  return out;
}

std::string place(const std::string& section) {
  return section.empty() ? "at the top level" : fmt::format("in section '{}'", section);
}

// "unknown key 'lr' in section 'train'; it belongs in section 'optimizer'". A synonym may name its section.
std::string explain_unknown(const std::vector<ConfigKey>& keys, const ConfigSynonyms& synonyms,
                            const std::string& section, const std::string& name) {
  const std::string here = without_indices(section);
  const std::string unknown = fmt::format("unknown key '{}' {}", name, place(section));
  for (const auto& [word, meaning] : synonyms) {
    if (("." + join_config_path(here, name)).ends_with("." + word)) {
      return fmt::format("{}; here it is called {}", unknown, meaning);
    }
  }
  std::vector<std::string> homes, known, all;
  for (const ConfigKey& key : keys) {
    all.push_back(key.name);
    if (key.name == name) homes.push_back(place(key.section));
    if (key.section == here) known.push_back(key.name);
  }
  const std::string homes_text = fmt::format("{}", fmt::join(homes, " or "));
  const size_t slips = likely_slips(name);
  if (const std::string neighbour = nearest(name, known, slips); !neighbour.empty()) {
    if (homes.empty()) return fmt::format("{}; did you mean '{}'?", unknown, neighbour);
    return fmt::format("{}; did you mean '{}', or does it belong {}?", unknown, neighbour, homes_text);
  }
  if (!homes.empty()) return fmt::format("{}; it belongs {}", unknown, homes_text);
  // Among the keys of all sections, something is always similar: it must be more so.
  if (const std::string other = nearest(name, all, std::max<size_t>(1, slips - 1)); !other.empty()) {
    const ConfigKey& key = *std::ranges::find(keys, other, &ConfigKey::name);
    return fmt::format("{}; did you mean '{}'?", unknown, join_config_path(key.section, key.name));
  }
  return fmt::format("{}; known there: {}", unknown, fmt::join(known, ", "));
}

// --- visitors

// A visitor that knows the path of the section it is in.
class PathVisitor : public ConfigVisitor {
 public:
  void section(std::string_view key, const std::function<void()>& members) override { inside(path(key), members); }

 protected:
  std::string path(std::string_view key) const { return join_config_path(section_, key); }
  void inside(std::string section, const std::function<void()>& members) {
    std::swap(section_, section);
    members();
    std::swap(section_, section);
  }

  std::string section_;
};

class KeyCollector final : public PathVisitor {
 public:
  void section(std::string_view key, const std::function<void()>& members) override {
    add(key, true);
    PathVisitor::section(key, members);
  }
  void scalar(std::string_view key, const ScalarField&) override { add(key, false); }
  void texts(std::string_view key, std::vector<std::string>&) override { add(key, false); }
  void list(std::string_view key, const ListField& field) override {
    add(key, true);
    inside(path(key) + "[]", [&] { field.bind_default(*this); });
  }

  std::vector<ConfigKey> keys;

 private:
  void add(std::string_view key, bool is_section) { keys.push_back({section_, std::string(key), is_section}); }
};

class Flattener final : public PathVisitor {
 public:
  void scalar(std::string_view key, const ScalarField& field) override { values[path(key)] = field.get(); }
  void texts(std::string_view key, std::vector<std::string>& list) override { values[path(key)] = flow_list(list); }
  void list(std::string_view key, const ListField& field) override {
    for (size_t i = 0; i < field.size(); ++i) {
      inside(fmt::format("{}[{}]", path(key), i), [&] { field.bind(i, *this); });
    }
  }

  std::map<std::string, std::string> values;
};

class YamlWriter final : public ConfigVisitor {
 public:
  void section(std::string_view key, const std::function<void()>& members) override {
    line(key, "");
    indent_ += 2;
    members();
    indent_ -= 2;
  }
  void scalar(std::string_view key, const ScalarField& field) override { line(key, " " + field.get()); }
  void texts(std::string_view key, std::vector<std::string>& values) override { line(key, " " + flow_list(values)); }
  void list(std::string_view key, const ListField& field) override {
    if (field.size() == 0) return line(key, " []");
    line(key, "");
    indent_ += 4;
    for (size_t i = 0; i < field.size(); ++i) {
      dash_ = true;
      field.bind(i, *this);
    }
    indent_ -= 4;
  }

  std::string out;

 private:
  void line(std::string_view key, const std::string& value) {
    std::string indent(indent_, ' ');
    if (dash_) indent[indent_ - 2] = '-';
    dash_ = false;
    out += fmt::format("{}{}:{}\n", indent, key, value);
  }

  size_t indent_ = 0;
  bool dash_ = false;  // the next line is the first one of a list's element
};

class Reader final : public PathVisitor {
 public:
  Reader(const ConfigNode& root, const std::vector<ConfigKey>& keys, const ConfigSynonyms& synonyms)
      : keys_(keys), synonyms_(synonyms), node_(&root) {}

  ConfigOrigins finish() {
    report_unknown();
    if (errors_.empty()) return std::move(origins_);
    const size_t shown = std::min(errors_.size(), kMaxReported);
    std::string message =
        fmt::format("{}", fmt::join(errors_.begin(), errors_.begin() + static_cast<ptrdiff_t>(shown), "\n"));
    if (errors_.size() > shown) message += fmt::format("\n… and {} more", errors_.size() - shown);
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

  void texts(std::string_view key, std::vector<std::string>& values) override {
    const ConfigNode* node = take(key);
    if (node == nullptr) return;
    std::vector<std::string> found;
    const bool is_one = node->kind == ConfigNode::Kind::kScalar;
    if (!is_one && node->kind != ConfigNode::Kind::kList) return wrong(key, *node, "a list of texts");
    if (is_one) found.push_back(node->text);
    for (const ConfigNode& item : node->items) {
      if (item.kind != ConfigNode::Kind::kScalar) return wrong(key, item, "a list of texts");
      found.push_back(item.text);
    }
    values = std::move(found);
  }

  void list(std::string_view key, const ListField& field) override {
    const ConfigNode* node = take(key);
    if (node == nullptr) return;
    if (node->kind != ConfigNode::Kind::kList) return wrong(key, *node, "a list of sections");
    field.resize(node->items.size());
    for (size_t i = 0; i < node->items.size(); ++i) {
      const ConfigNode& item = node->items[i];
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
  // The node of a key in the section; nullptr if the section does not have it.
  const ConfigNode* take(std::string_view key) {
    const ConfigMember* member = node_->find(key);
    if (member == nullptr) return nullptr;
    taken_.emplace(key);
    origins_[path(key)] = member->value.origin;
    return &member->value;
  }

  void read_members(const ConfigNode& node, const std::string& path, const std::function<void()>& members) {
    const ConfigNode* const parent = std::exchange(node_, &node);
    const auto taken = std::exchange(taken_, {});
    inside(path, [&] {
      members();
      report_unknown();
    });
    node_ = parent;
    taken_ = taken;
  }

  void report_unknown() {
    for (const ConfigMember& member : node_->members) {
      if (taken_.contains(member.key)) continue;
      errors_.push_back(fmt::format("{}: {}", member.origin, explain_unknown(keys_, synonyms_, section_, member.key)));
    }
  }

  void wrong(std::string_view key, const ConfigNode& node, const std::string& expected) {
    errors_.push_back(fmt::format("{}: {}: expected {}, got {}", node.origin, path(key), expected, describe(node)));
  }

  const std::vector<ConfigKey>& keys_;
  const ConfigSynonyms& synonyms_;
  const ConfigNode* node_;                    // of the section
  std::set<std::string, std::less<>> taken_;  // its keys that are known
  ConfigOrigins origins_;
  std::vector<std::string> errors_;
};

}  // namespace

std::string format_text(const std::string& text) {
  if (safe_plain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string RealRange::expected() const {
  if (std::isinf(min) && std::isinf(max)) return "a number";
  if (std::isinf(max)) return fmt::format("a number {} {}", is_min_open ? ">" : ">=", min);
  if (std::isinf(min)) return fmt::format("a number {} {}", is_max_open ? "<" : "<=", max);
  return fmt::format("a number in {}{}, {}{}", is_min_open ? '(' : '[', min, max, is_max_open ? ')' : ']');
}

std::optional<std::string> plain_number(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kScalar || node.quoted || node.text.empty()) return std::nullopt;
  if (node.text[0] != '+') return node.text;
  if (node.text.size() > 1 && node.text[1] == '-') return std::nullopt;
  return node.text.substr(1);
}

ScalarField bool_field(bool& target) {
  return {.expected = "true or false",
          .get = [&target] { return std::string(target ? "true" : "false"); },
          .set =
              [&target](const ConfigNode& node) {
                if (node.kind != ConfigNode::Kind::kScalar || node.quoted) return false;
                if (node.text != "true" && node.text != "false") return false;
                target = node.text == "true";
                return true;
              }};
}

ScalarField text_field(std::string& target) {
  return parsed_field(
      target, "a text", [&target] { return format_text(target); },
      [](const std::string& text) { return std::optional(text); });
}

std::string join_config_path(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& known, size_t slips) {
  std::string best;
  size_t best_distance = slips + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

ConfigOrigins read_config(const ConfigNode& root, const ConfigBinding& bind, const ConfigSynonyms& synonyms) {
  const std::vector<ConfigKey> keys = collect_config_keys(bind);
  Reader reader(root, keys, synonyms);
  bind(reader);
  return reader.finish();
}

std::string write_config(const ConfigBinding& bind) {
  YamlWriter writer;
  bind(writer);
  return std::move(writer.out);
}

std::map<std::string, std::string> flatten_config(const ConfigBinding& bind) {
  Flattener flattener;
  bind(flattener);
  return std::move(flattener.values);
}

std::vector<ConfigKey> collect_config_keys(const ConfigBinding& bind) {
  KeyCollector collector;
  bind(collector);
  return std::move(collector.keys);
}

}  // namespace mantissa
