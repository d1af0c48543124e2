// What precision.fallback has come to, as it travels between sessions and in checkpoints.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "amp/precision_fallback.h"
#include "tools/config/config.h"

namespace mantissa {

nlohmann::json to_json(const PrecisionFallback::State& state);

// From a trainer's state (Trainer::state()): null, or one of before there were fallbacks, has none.
PrecisionFallback fallback_from(const Config& config, const nlohmann::json& trainer_state);

}  // namespace mantissa
