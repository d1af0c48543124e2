// Binds the fields of structs to settings. Each field is bound once; the same binding reads, prints and lists it.
//
//   void bind_train(ConfigVisitor& v, TrainConfig& c) {
//     v.scalar("steps", integer_field<int64_t>(c.steps, 1));
//     v.scalar("recompute", choice_field(c.recompute, names::kRecompute));
//   }
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace mantissa {

// --- nodes

// A configuration is a tree of nodes that remember where they were written: file:line:column, or the command line.
//
// The YAML subset is strict: one document whose top is a map; no duplicate keys, anchors, aliases or tags.

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
  // The same for a path of keys: "precision.adaptive". The tree itself for "".
  const ConfigNode* below(std::string_view path) const;
  ConfigMember* find(std::string_view key) { return const_cast<ConfigMember*>(std::as_const(*this).find(key)); }
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

// --- fields

class ConfigVisitor;

// A setting with a single value.
struct ScalarField {
  std::string expected;                        // "an integer >= 1"
  std::function<std::string()> get;            // as YAML
  std::function<bool(const ConfigNode&)> set;  // false, and nothing changed, if the node is not what is expected
};

// A list of sections.
struct ListField {
  std::function<void(size_t count)> resize;  // to elements with default values
  std::function<size_t()> size;
  std::function<void(size_t index, ConfigVisitor&)> bind;  // the members of one element
  std::function<void(ConfigVisitor&)> bind_default;        // the members of a default element
};

class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;
  virtual void section(std::string_view key, const std::function<void()>& members) = 0;
  virtual void scalar(std::string_view key, const ScalarField& field) = 0;
  // A list of texts; a single text counts as a list of one.
  virtual void texts(std::string_view key, std::vector<std::string>& values) = 0;
  virtual void list(std::string_view key, const ListField& field) = 0;
};

// Binds all settings of a program; called with several visitors.
using ConfigBinding = std::function<void(ConfigVisitor&)>;

struct RealRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool is_min_open = false, is_max_open = false;

  static constexpr RealRange above_zero() { return {.min = 0.0, .is_min_open = true}; }
  static constexpr RealRange at_least_zero() { return {.min = 0.0}; }
  static constexpr RealRange below_one() { return {.min = 0.0, .max = 1.0, .is_max_open = true}; }  // [0, 1)

  bool contains(double value) const {
    return (is_min_open ? value > min : value >= min) && (is_max_open ? value < max : value <= max);
  }
  std::string expected() const;  // "a number in [0, 1)"
};

// The text of a plain (unquoted) scalar without a leading '+'; nothing for any other node.
std::optional<std::string> plain_number(const ConfigNode& node);

// Refuses "inf", "nan", and values that do not fit into T.
template <typename T>
std::optional<T> parse_number(const ConfigNode& node) {
  const auto text = plain_number(node);
  T value{};
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

// The field of a number for which is_allowed(value) holds.
template <typename T, typename IsAllowed>
ScalarField number_field(T& target, std::string expected, IsAllowed is_allowed) {
  return {.expected = std::move(expected),
          .get =
              [&target] {
                // The shortest text that reads back as the same value; a real number has a point or an exponent.
                std::string text = fmt::format("{}", target);
                const bool is_whole = text.find_first_not_of("-0123456789") == std::string::npos;
                return std::is_floating_point_v<T> && is_whole ? text + ".0" : text;
              },
          .set =
              [&target, is_allowed](const ConfigNode& node) {
                const std::optional<T> value = parse_number<T>(node);
                if (!value || !is_allowed(*value)) return false;
                target = *value;
                return true;
              }};
}

template <typename T>
ScalarField integer_field(T& target, T min = std::numeric_limits<T>::min(), T max = std::numeric_limits<T>::max()) {
  const bool has_min = min != std::numeric_limits<T>::min() || min == 0, has_max = max != std::numeric_limits<T>::max();
  std::string expected = "an integer";
  if (has_min && has_max) expected = fmt::format("an integer in [{}, {}]", min, max);
  if (has_min && !has_max) expected = fmt::format("an integer >= {}", min);
  if (!has_min && has_max) expected = fmt::format("an integer <= {}", max);
  return number_field(target, std::move(expected), [min, max](T value) { return value >= min && value <= max; });
}

// Finite numbers only.
template <typename T>
ScalarField real_field(T& target, RealRange range = {}) {
  return number_field(target, range.expected(),
                      [range](T value) { return range.contains(static_cast<double>(value)); });
}

// A field of numbers that also takes "auto", kept as 0.
template <typename T>
ScalarField auto_or(T& target, const ScalarField& number) {
  return {.expected = number.expected + ", or auto",
          .get = [&target, number] { return target == T{} ? "auto" : number.get(); },
          .set =
              [&target, number](const ConfigNode& node) {
                if (node.kind != ConfigNode::Kind::kScalar || node.text != "auto") return number.set(node);
                target = T{};
                return true;
              }};
}

// The field of a scalar whose text `parse` turns into the value, if it is one.
template <typename T, typename Get, typename Parse>
ScalarField parsed_field(T& target, std::string expected, Get get, Parse parse) {
  return {.expected = std::move(expected), .get = get, .set = [&target, parse](const ConfigNode& node) {
            if (node.kind != ConfigNode::Kind::kScalar) return false;
            const std::optional<T> value = parse(node.text);
            if (value) target = *value;
            return value.has_value();
          }};
}

ScalarField bool_field(bool& target);
ScalarField text_field(std::string& target);

// One of a fixed set of words.
template <typename Enum, size_t kCount>
ScalarField choice_field(Enum& target, const std::pair<std::string_view, Enum> (&names)[kCount]) {
  std::string expected = "one of ";
  for (size_t i = 0; i < kCount; ++i) expected += (i == 0 ? "" : ", ") + std::string(names[i].first);
  const auto get = [&target, &names] {
    const auto* const found = std::ranges::find(names, target, &std::pair<std::string_view, Enum>::second);
    return std::string(found == std::end(names) ? "?" : found->first);
  };
  return parsed_field(target, expected, get, [&names](std::string_view text) {
    const auto* const found = std::ranges::find(names, text, &std::pair<std::string_view, Enum>::first);
    return found == std::end(names) ? std::nullopt : std::optional(found->second);
  });
}

// A list of sections. bind(visitor, element) binds the members of one element; make() returns a default element.
template <typename T, typename Bind, typename Make>
ListField list_field(std::vector<T>& target, Bind bind, Make make) {
  return {.resize = [&target, make](size_t count) { target.assign(count, make()); },
          .size = [&target] { return target.size(); },
          .bind = [&target, bind](size_t index, ConfigVisitor& visitor) { bind(visitor, target[index]); },
          .bind_default =
              [bind, make](ConfigVisitor& visitor) {
                T element = make();
                bind(visitor, element);
              }};
}

template <typename T, typename Bind>
ListField list_field(std::vector<T>& target, Bind bind) {
  return list_field(target, bind, [] { return T{}; });
}

// --- reading and writing

// The place at which each given setting was written: path ("optimizer.lr") to "gpt.yaml:12:3". Omits settings that kept
// their defaults.
using ConfigOrigins = std::map<std::string, std::string>;

// Names from other programs, and the settings that they mean: {"learning_rate", "optimizer.lr"}.
using ConfigSynonyms = std::vector<std::pair<std::string, std::string>>;

// Fields missing in the tree keep their values. Throws a single ConfigError with every unknown key (and the section
// where it belongs, or a did-you-mean) and every wrong value (and the expected kind).
ConfigOrigins read_config(const ConfigNode& root, const ConfigBinding& bind, const ConfigSynonyms& synonyms = {});

// A text as YAML, quoted if necessary.
std::string format_text(const std::string& text);

// YAML that reads back to the same values.
std::string write_config(const ConfigBinding& bind);

// Path to value: "optimizer.lr" to "0.0003"; elements of lists are "precision.rules[0].match".
std::map<std::string, std::string> flatten_config(const ConfigBinding& bind);

// A key that the configuration knows.
struct ConfigKey {
  std::string section;  // "optimizer.clip"; "" at the top; "precision.rules[]" inside a list's element
  std::string name;
  bool is_section = false;
};
// All keys, in the order of the binding.
std::vector<ConfigKey> collect_config_keys(const ConfigBinding& bind);

// "a.b" and "c" to "a.b.c"; "" and "c" to "c".
std::string join_config_path(std::string_view section, std::string_view key);

// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
size_t edit_distance(std::string_view a, std::string_view b);
// The word with the fewest slips from `word`, at most `slips`, if they leave something of it; empty if there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& known, size_t slips);
// The slips that a word of this length may have.
inline size_t likely_slips(std::string_view word) { return word.size() <= 3 ? 1 : word.size() <= 7 ? 2 : 3; }

}  // namespace mantissa
