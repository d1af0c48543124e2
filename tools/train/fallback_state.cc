#include "tools/train/fallback_state.h"

#include <nlohmann/json.hpp>

namespace mantissa {

nlohmann::json to_json(const PrecisionFallback::State& state) {
  nlohmann::json layers = nlohmann::json::object();
  for (const auto& [name, layer] : state) {
    layers[name] = {
        {"levels", layer.levels}, {"returns", layer.returns}, {"since", layer.since}, {"overflows", layer.overflows}};
  }
  return layers;
}

PrecisionFallback fallback_from(const Config& config, const nlohmann::json& trainer_state) {
  PrecisionFallback::State state;
  if (trainer_state.is_object() && trainer_state.contains("fallback")) {
    for (const auto& [name, layer] : trainer_state.at("fallback").items()) {
      state[name] = {.levels = layer.at("levels"),
                     .returns = layer.at("returns"),
                     .since = layer.at("since"),
                     .overflows = layer.at("overflows").get<std::vector<int64_t>>()};
    }
  }
  return PrecisionFallback(config.precision_fallback, std::move(state));
}

}  // namespace mantissa
