#include "core/io/config_keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace mantissa {
namespace {

class KeyCollector final : public ConfigVisitor {
 public:
  ConfigKeys take() { return std::move(keys_); }

  void section(std::string_view key, const std::function<void()>& members) override {
    add(key, true);
    inside(join_config_path(section_, key), members);
  }
  void scalar(std::string_view key, const ScalarField&) override { add(key, false); }
  void texts(std::string_view key, const TextListField&) override { add(key, false); }
  void list(std::string_view key, const ListField& field) override {
    add(key, true);
    inside(join_config_path(section_, key) + "[]", [&] { field.bind_default(*this); });
  }

 private:
  void add(std::string_view key, bool is_section) { keys_.keys.push_back({section_, std::string(key), is_section}); }

  void inside(std::string section, const std::function<void()>& members) {
    std::swap(section_, section);
    members();
    std::swap(section_, section);
  }

  ConfigKeys keys_;
  std::string section_;
};

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

// How many typing slips a name of this length may hold and still be recognised.
size_t allowed_slips(std::string_view name) { return name.size() <= 3 ? 1 : name.size() <= 7 ? 2 : 3; }

// The key most like `name` among those that `include` admits, or nullptr if none is like it.
template <typename Include>
const ConfigKeys::Key* nearest(const ConfigKeys& keys, const std::string& name, Include include) {
  const ConfigKeys::Key* best = nullptr;
  size_t best_distance = allowed_slips(name) + 1;
  for (const auto& key : keys.keys) {
    if (!include(key)) continue;
    const size_t distance = edit_distance(name, key.name);
    if (distance < best_distance && distance < key.name.size()) {
      best = &key;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

ConfigKeys collect_config_keys(const ConfigBinding& bind) {
  KeyCollector collector;
  bind(collector);
  return collector.take();
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

std::string explain_unknown(const ConfigKeys& keys, const ConfigSynonyms& synonyms, const std::string& section,
                            const std::string& name) {
  const std::string here = without_indices(section);
  const std::string unknown = fmt::format("unknown key '{}' {}", name, place(section));

  std::vector<std::string> homes;
  for (const auto& key : keys.keys) {
    if (key.name == name) homes.push_back(place(key.section));
  }
  const std::string homes_text = fmt::format("{}", fmt::join(homes, " or "));
  const ConfigKeys::Key* neighbour = nearest(keys, name, [&](const auto& key) { return key.section == here; });
  if (neighbour != nullptr && !homes.empty()) {
    return fmt::format("{}; did you mean '{}', or does it belong {}?", unknown, neighbour->name, homes_text);
  }
  if (neighbour != nullptr) return fmt::format("{}; did you mean '{}'?", unknown, neighbour->name);
  if (!homes.empty()) return fmt::format("{}; it belongs {}", unknown, homes_text);
  for (const auto& [word, meaning] : synonyms) {
    if (word == name) return fmt::format("{}; here it is called {}", unknown, meaning);
  }
  if (const ConfigKeys::Key* other = nearest(keys, name, [](const auto&) { return true; })) {
    return fmt::format("{}; did you mean '{}'?", unknown, join_config_path(other->section, other->name));
  }
  std::vector<std::string> known;
  for (const auto& key : keys.keys) {
    if (key.section == here) known.push_back(key.name);
  }
  return fmt::format("{}; known there: {}", unknown, fmt::join(known, ", "));
}

}  // namespace mantissa
