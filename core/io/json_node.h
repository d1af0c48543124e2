// Reads values of a JSON file; every error names the file, the key, and what was expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace mantissa {

class JsonNode {
 public:
  // NaN, Infinity, -Infinity and numbers above the range of a double, which Python reads, become empty objects: readers
  // of their keys refuse these by type. nlohmann::json::exception if the text is not valid otherwise.
  static nlohmann::json parse(std::string_view text);
  static constexpr char kEmptyObject[] = "{} or a number that JSON has not (NaN, Infinity, 1e999)";  // in messages
  // DataError if the file cannot be read or is not valid JSON. `value` outlives the node and those below it.
  static nlohmann::json read(const std::string& path);
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }  // "FILE: model.vocab"

  // A member; nothing if it is absent or null.
  std::optional<JsonNode> find(std::string_view key) const;
  JsonNode at(std::string_view key) const;  // DataError if it is absent or null
  // The item of an array; must exist.
  JsonNode at(size_t index) const { return {(*value_)[index], fmt::format("{}[{}]", where_, index)}; }

  // DataError if the value is of another type.
  const nlohmann::json& object() const { return expect(value_->is_object(), "an object"); }
  const nlohmann::json& array() const { return expect(value_->is_array(), "an array"); }
  const std::string& text() const { return expect(value_->is_string(), "a string").get_ref<const std::string&>(); }
  bool flag() const { return expect(value_->is_boolean(), "true or false").get<bool>(); }
  // The flag of a member, or `otherwise` if it is absent.
  bool flag(std::string_view key, bool otherwise) const {
    const auto member = find(key);
    return member ? member->flag() : otherwise;
  }
  // The id of a token.
  int32_t id() const { return expect(is_id(*value_), "a token's id, 0 to 4194303").get<int32_t>(); }

  static bool is_id(const nlohmann::json& value) {
    constexpr uint64_t kLargest = (1 << 22) - 1;  // no vocabulary is near it, and a damaged id would take memory
    return value.is_number_unsigned() && value.get<uint64_t>() <= kLargest;
  }

  // The value; DataError unless `is_right`.
  const nlohmann::json& expect(bool is_right, std::string_view expected) const;
  [[noreturn]] void fail(std::string_view message) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

// The object in a JSON file. FileError naming the file if it cannot be read, is not valid JSON, or holds no object.
template <typename FileError>
nlohmann::json read_json_object(const std::string& path) {
  try {
    nlohmann::json json = JsonNode::read(path);
    JsonNode(json, path).object();
    return json;
  } catch (const DataError& error) {
    throw FileError(error.what());
  }
}

}  // namespace mantissa
