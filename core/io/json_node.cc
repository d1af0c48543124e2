#include "core/io/json_node.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/wrapped_text.h"
#include "core/io/files.h"

namespace mantissa {
namespace {

// A number for Python and not for nlohmann::json: NaN, an infinity, or above the range of a double.
bool is_unusual_number(const std::string& word) try {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  char* end = nullptr;  // json::parse() reads no further than a number that is too large, and strtod() also "01e999"
  std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() && !nlohmann::json::parse(word).is_number();
} catch (const nlohmann::json::out_of_range&) {
  return true;
} catch (const nlohmann::json::parse_error&) {
  return false;
}

// The JSON with an empty object in the place of each such number.
std::string without_unusual_numbers(std::string_view text) {
  std::string out;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else {
      end = std::max(end, std::min(text.find_first_of(" \t\r\n,:[]{}\"", at), text.size()));
    }
    const std::string word(text.substr(at, end - at));
    out += is_unusual_number(word) ? "{}" : word;
  }
  return out;
}

}  // namespace

nlohmann::json JsonNode::parse(std::string_view text) try {
  return nlohmann::json::parse(text);
} catch (const nlohmann::json::exception&) {
  const std::string usual = without_unusual_numbers(text);
  if (usual == text) throw;
  return nlohmann::json::parse(usual);
}

nlohmann::json JsonNode::read(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  try {
    return parse(file.text());
  } catch (const nlohmann::json::exception& error) {  // names the line
    throw DataError("{}: not valid JSON: {}", path, legible(error.what()));
  }
}

void JsonNode::fail(std::string_view message) const { throw DataError("{}: {}", where_, legible(message)); }

const nlohmann::json& JsonNode::expect(bool is_right, std::string_view expected) const {
  if (is_right) return *value_;
  // An array may be as deep as the stack, so that it is not printed.
  constexpr size_t kShown = 60;
  std::string shown = value_->is_array()    ? "an array"
                      : value_->is_object() ? value_->empty() ? kEmptyObject : "an object"
                                            : value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (shown.size() > kShown) shown = shown.substr(0, kShown) + "...";
  fail(fmt::format("expected {}, got {}", expected, shown));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const auto member = object().find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  // "FILE: model", then "FILE: model.vocab".
  return JsonNode(*member, fmt::format("{}{}{}", where_, where_.find(": ") == std::string::npos ? ": " : ".", key));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (auto member = find(key)) return *std::move(member);
  fail(fmt::format("the key '{}' is missing", key));
}

}  // namespace mantissa
