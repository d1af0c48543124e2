#include "core/io/config_scalar.h"

#include <string_view>

#include "core/io/config_fields.h"

namespace mantissa {
namespace {

// Whether a plain scalar of this text reads back as the same text, wherever it stands (also in a flow list).
bool safe_plain(const std::string& text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  if (text.empty() || text.find_first_not_of(kSafe) != std::string::npos) return false;
  if (text.front() == '-' || text == "." || text == "..") return false;
  for (const std::string_view word : {"null", "Null", "NULL", "true", "false"}) {
    if (text == word) return false;
  }
  return true;
}

}  // namespace

bool RealRange::contains(double value) const {
  const bool above = min_bound == Bound::kClosed ? value >= min : value > min;
  const bool below = max_bound == Bound::kClosed ? value <= max : value < max;
  return above && below;
}

std::string RealRange::expected() const {
  if (std::isinf(min) && std::isinf(max)) return "a number";
  if (std::isinf(max)) return fmt::format("a number {} {}", min_bound == Bound::kClosed ? ">=" : ">", min);
  if (std::isinf(min)) return fmt::format("a number {} {}", max_bound == Bound::kClosed ? "<=" : "<", max);
  return fmt::format("a number in {}{}, {}{}", min_bound == Bound::kClosed ? '[' : '(', min, max,
                     max_bound == Bound::kClosed ? ']' : ')');
}

std::optional<std::string> plain_number(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kScalar || node.quoted || node.text.empty()) return std::nullopt;
  if (node.text[0] != '+') return node.text;
  if (node.text.size() > 1 && node.text[1] == '-') return std::nullopt;
  return node.text.substr(1);
}

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
  return {.expected = "a text",
          .get = [&target] { return format_text(target); },
          .set =
              [&target](const ConfigNode& node) {
                if (node.kind != ConfigNode::Kind::kScalar) return false;
                target = node.text;
                return true;
              }};
}

}  // namespace mantissa
