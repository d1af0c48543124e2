// Files of figures with one of them damaged.
#pragma once

#include <functional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace mantissa::testing {

// Calls f with copies, each with a part (a figure, or all below a key) of another type or without it.
inline void for_each_damage(const nlohmann::json& whole,
                            const std::function<void(const std::string& damage, const nlohmann::json& damaged)>& f) {
  using Json = nlohmann::json;
  std::set<Json::json_pointer> parts;
  const Json leaves = whole.flatten();
  for (const auto& [leaf, value] : leaves.items()) {
    for (Json::json_pointer place(leaf); !place.empty(); place.pop_back()) parts.insert(place);
  }
  for (const Json::json_pointer& place : parts) {
    for (const Json& value : Json{nullptr, "x", -7, 0.5, Json::array(), Json::object(), "removed"}) {
      Json damaged = whole;
      damaged[place] = value;
      Json& parent = damaged[place.parent_pointer()];
      if (value == "removed" && parent.is_object()) parent.erase(place.back());
      f(place.to_string() + " " + value.dump(), damaged);
    }
  }
}

}  // namespace mantissa::testing
