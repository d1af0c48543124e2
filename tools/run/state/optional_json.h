// Optional values in JSON: an absent value is null, as are NaN and Inf in JSON text.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& from) { to = from ? json(*from) : json(); }
  static void from_json(const json& from, std::optional<T>& to) {
    if (from.is_null()) {
      to.reset();
    } else {
      to = from.get<T>();
    }
  }
};
