#include "amp/layer_pattern.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"

namespace mantissa {
namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> components;
  if (path.empty()) return components;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', begin)) {
    components.emplace_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  components.emplace_back(path.substr(begin));
  return components;
}

bool matches_component(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    return matches_component(pattern.substr(1), text) || (!text.empty() && matches_component(pattern, text.substr(1)));
  }
  return !text.empty() && (pattern.front() == '?' || pattern.front() == text.front()) &&
         matches_component(pattern.substr(1), text.substr(1));
}

// Whether the pattern matches the path or one of its leading parts.
bool matches_prefix(std::span<const std::string> pattern, std::span<const std::string> path) {
  if (pattern.empty()) return true;
  if (pattern.front() == "**") {
    return matches_prefix(pattern.subspan(1), path) || (!path.empty() && matches_prefix(pattern, path.subspan(1)));
  }
  return !path.empty() && matches_component(pattern.front(), path.front()) &&
         matches_prefix(pattern.subspan(1), path.subspan(1));
}

}  // namespace

LayerPattern::LayerPattern(std::string text) : text_(std::move(text)), components_(split(text_)) {
  if (components_.empty() ||
      std::any_of(components_.begin(), components_.end(), [](const auto& c) { return c.empty(); })) {
    throw ConfigError(
        fmt::format("[layer_pattern] expected names between single dots, such as blocks.*.mlp, got '{}'", text_));
  }
  literal_length_ = static_cast<int>(
      std::count_if(text_.begin(), text_.end(), [](char c) { return c != '*' && c != '?' && c != '.'; }));
}

bool LayerPattern::matches(std::string_view layer_path) const { return matches_prefix(components_, split(layer_path)); }

}  // namespace mantissa
