// Scalar values of a configuration: strict text to value, and back without loss.
#pragma once

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "core/io/config_node.h"

namespace mantissa {

struct RealRange {
  enum class Bound { kClosed, kOpen };
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  Bound min_bound = Bound::kClosed, max_bound = Bound::kClosed;

  static constexpr RealRange above_zero() { return {.min = 0.0, .min_bound = Bound::kOpen}; }
  static constexpr RealRange at_least_zero() { return {.min = 0.0}; }
  static constexpr RealRange below_one() { return {.min = 0.0, .max = 1.0, .max_bound = Bound::kOpen}; }  // [0, 1)

  bool contains(double value) const;
  std::string expected() const;  // "a number in [0, 1)"
};

template <typename T>
std::string expected_integer(T min, T max) {
  const bool has_min = min != std::numeric_limits<T>::min() || min == 0, has_max = max != std::numeric_limits<T>::max();
  if (has_min && has_max) return fmt::format("an integer in [{}, {}]", min, max);
  if (has_min) return fmt::format("an integer >= {}", min);
  if (has_max) return fmt::format("an integer <= {}", max);
  return "an integer";
}

// The text of a plain (unquoted) scalar without a leading '+', else nothing.
std::optional<std::string> plain_number(const ConfigNode& node);

template <typename T>
std::optional<T> parse_integer(const ConfigNode& node) {
  const auto text = plain_number(node);
  T value{};
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

// Finite values only: "inf", "nan" and what overflows T are refused.
template <typename T>
std::optional<T> parse_real(const ConfigNode& node) {
  const auto text = plain_number(node);
  T value{};
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The shortest text that reads back as the same value, always with a point or an exponent.
template <typename T>
std::string format_real(T value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// A text as YAML, quoted where it has to be.
std::string format_text(const std::string& text);

}  // namespace mantissa
