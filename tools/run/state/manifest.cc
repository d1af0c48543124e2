#include "tools/run/state/manifest.h"

namespace mantissa {
namespace {

void require_number(const NumberRange& range, const nlohmann::json& value, std::string_view rest,
                    const std::string& name) {
  if (rest.empty()) {
    const bool is_number = range.is_whole ? value.is_number_integer() : value.is_number();
    if (is_number && value.get<double>() >= range.least && value.get<double>() <= range.most) return;
    throw DamagedEntry(fmt::format("'{}' is damaged: expected a {}number from {} to {}, got {}", name,
                                   range.is_whole ? "whole " : "", range.least, range.most, value.dump()));
  }
  const size_t dot = rest.find('.');
  const std::string_view key = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  if (!value.is_structured()) return;  // such an entry, like a missing one, is the reader's business
  for (const auto& [found, item] : value.items()) {
    if (key == "*" || key == found) require_number(range, item, rest, name.empty() ? found : name + "." + found);
  }
}

}  // namespace

void require_in(std::span<const NumberRange> ranges, const nlohmann::json& value, const std::string& name) {
  for (const NumberRange& range : ranges) require_number(range, value, range.path, name);
}

}  // namespace mantissa
