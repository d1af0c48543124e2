#include "core/io/json_node.h"

#include "core/base/wrapped_text.h"
#include "core/io/files.h"

namespace mantissa {

nlohmann::json JsonNode::read(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  try {
    return nlohmann::json::parse(file.text());
  } catch (const nlohmann::json::exception& error) {  // names the line
    throw DataError(fmt::format("{}: not valid JSON: {}", path, legible(error.what())));
  }
}

void JsonNode::fail(std::string_view message) const {
  throw DataError(fmt::format("{}: {}", where_, legible(message)));
}

const nlohmann::json& JsonNode::expect(bool is_right, std::string_view expected) const {
  if (is_right) return *value_;
  // An array may be as deep as the stack, so that it is not printed.
  constexpr size_t kShown = 60;
  std::string shown = value_->is_array()    ? "an array"
                      : value_->is_object() ? "an object"
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
