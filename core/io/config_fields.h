// How a struct's fields become settings: each is bound once, and the same binding reads, prints and lists them.
//
//   void bind_train(ConfigVisitor& v, TrainConfig& c) {
//     v.scalar("steps", integer_field<int64_t>(c.steps, 1));
//     v.scalar("device", choice_field(c.device, kDeviceNames));
//   }
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/config_node.h"
#include "core/io/config_scalar.h"

namespace mantissa {

class ConfigVisitor;

// One setting that is written as one value.
struct ScalarField {
  std::string expected;                        // "an integer >= 1"
  std::function<std::string()> get;            // as YAML
  std::function<bool(const ConfigNode&)> set;  // false, and nothing changed, if the node is not what is expected
};

// A list of texts, [] or one text alone included.
struct TextListField {
  std::vector<std::string>* target;
};

// A list of sections.
struct ListField {
  std::function<void()> clear;
  std::function<void()> append;
  std::function<size_t()> size;
  std::function<void(size_t index, ConfigVisitor&)> bind;  // the members of one element
  std::function<void(ConfigVisitor&)> bind_default;        // the members of an element as append() makes it
};

class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;
  virtual void section(std::string_view key, const std::function<void()>& members) = 0;
  virtual void scalar(std::string_view key, const ScalarField& field) = 0;
  virtual void texts(std::string_view key, const TextListField& field) = 0;
  virtual void list(std::string_view key, const ListField& field) = 0;
};

// Binds all settings of a program; called with several visitors.
using ConfigBinding = std::function<void(ConfigVisitor&)>;

template <typename T>
ScalarField integer_field(T& target, T min = std::numeric_limits<T>::min(), T max = std::numeric_limits<T>::max()) {
  return {.expected = expected_integer(min, max),
          .get = [&target] { return std::to_string(target); },
          .set =
              [&target, min, max](const ConfigNode& node) {
                const std::optional<T> value = parse_integer<T>(node);
                if (!value || *value < min || *value > max) return false;
                target = *value;
                return true;
              }};
}

// Finite numbers only.
template <typename T>
ScalarField real_field(T& target, RealRange range = {}) {
  return {.expected = range.expected(),
          .get = [&target] { return format_real(target); },
          .set =
              [&target, range](const ConfigNode& node) {
                const std::optional<T> value = parse_real<T>(node);
                if (!value || !range.contains(static_cast<double>(*value))) return false;
                target = *value;
                return true;
              }};
}

ScalarField bool_field(bool& target);
ScalarField text_field(std::string& target);

// One of a fixed set of words.
template <typename Enum, size_t kCount>
ScalarField choice_field(Enum& target, const std::pair<std::string_view, Enum> (&names)[kCount]) {
  std::string expected = "one of ";
  for (size_t i = 0; i < kCount; ++i) expected += (i == 0 ? "" : ", ") + std::string(names[i].first);
  return {.expected = expected,
          .get =
              [&target, &names] {
                for (const auto& [word, value] : names) {
                  if (value == target) return std::string(word);
                }
                return std::string("?");
              },
          .set =
              [&target, &names](const ConfigNode& node) {
                for (const auto& [word, value] : names) {
                  if (node.kind != ConfigNode::Kind::kScalar || node.text != word) continue;
                  target = value;
                  return true;
                }
                return false;
              }};
}

// A list of sections; bind(visitor, element) binds the members of one element, which make() has made.
template <typename T, typename Bind, typename Make>
ListField list_field(std::vector<T>& target, Bind bind, Make make) {
  return {.clear = [&target] { target.clear(); },
          .append = [&target, make] { target.push_back(make()); },
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

}  // namespace mantissa
