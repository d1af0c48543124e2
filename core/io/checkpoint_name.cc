#include "core/io/checkpoint_name.h"

#include <fmt/core.h>

#include <charconv>
#include <system_error>

namespace mantissa {
namespace {

constexpr std::string_view kPrefix = "step-";

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08d}", kPrefix, step); }

std::optional<int64_t> parse_checkpoint_name(std::string_view name, std::string_view suffix) {
  if (name.size() < kPrefix.size() + suffix.size() || !name.starts_with(kPrefix) || !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

}  // namespace mantissa
