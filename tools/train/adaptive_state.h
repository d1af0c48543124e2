// What precision.adaptive has come to, as it travels between sessions and in checkpoints.
#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "amp/adaptive_precision.h"
#include "tools/config/config.h"

namespace mantissa {

nlohmann::json to_json(const AdaptivePrecision::State& state);
// As a record of the metrics has it.
nlohmann::json to_json(const BadSignal& bad);

// Of a run, from a trainer's state (Trainer::state()): null, or one of before the precision adapted, begins behind
// `steps` steps. Nothing where the run's precision does not adapt.
std::optional<AdaptivePrecision> adaptive_from(const Config& run, int64_t steps, const nlohmann::json& trainer_state);

// The phase of a run (tools/config/precision_phases.h) behind `steps` steps, where its trainer had come to this state,
// and the configuration of that phase.
int phase_of(const Config& run, int64_t steps, const nlohmann::json& trainer_state);
Config config_of(const Config& run, int64_t steps, const nlohmann::json& trainer_state);

}  // namespace mantissa
