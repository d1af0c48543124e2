#include "core/io/json_node.h"

#include "core/base/wrapped_text.h"
#include "core/io/files.h"

namespace mantissa {
namespace {

constexpr uint64_t kLargestId = (1 << 22) - 1;  // no vocabulary is near it, and a damaged id would take memory

}  // namespace

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

void JsonNode::expect(bool is_right, std::string_view expected) const {
  if (is_right) return;
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

const nlohmann::json& JsonNode::object() const {
  expect(value_->is_object(), "an object");
  return *value_;
}
const nlohmann::json& JsonNode::array() const {
  expect(value_->is_array(), "an array");
  return *value_;
}
const std::string& JsonNode::text() const {
  expect(value_->is_string(), "a string");
  return value_->get_ref<const std::string&>();
}
bool JsonNode::flag() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}
bool JsonNode::flag(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->flag() : otherwise;
}
int32_t JsonNode::id() const {
  expect(is_id(*value_), "a token's id, 0 to 4194303");
  return value_->get<int32_t>();
}
bool JsonNode::is_id(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= kLargestId;
}

}  // namespace mantissa
