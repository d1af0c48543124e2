#include "tools/train/training_state.h"

#include "core/base/log.h"

namespace mantissa {
namespace {

ScalerMode scaler_mode(const std::string& word) {
  return word == "dynamic" ? ScalerMode::kDynamic : word == "static" ? ScalerMode::kStatic : ScalerMode::kNone;
}

}  // namespace

TrainingState state_of(const Session& session) {
  return {.next_step = session.next_step,
          .applied_steps = session.optimizer.applied_steps(),
          .scaler = session.scaler.state(),
          .clip_norms = session.clipper.state()};
}

nlohmann::json to_json(const TrainingState& state) {
  return {{"next_step", state.next_step},
          {"applied_steps", state.applied_steps},
          {"scaler",
           {{"mode", name(state.scaler.mode)},
            {"scale", state.scaler.scale},
            {"clean_steps", state.scaler.clean_steps},
            {"hysteresis_left", state.scaler.hysteresis_left}}},
          {"clip_norms", state.clip_norms}};
}

TrainingState training_state_from(const nlohmann::json& manifest) {
  const nlohmann::json& scaler = manifest.at("scaler");
  return {.next_step = manifest.at("next_step"),
          .applied_steps = manifest.at("applied_steps"),
          .scaler = {.mode = scaler_mode(scaler.at("mode")),
                     .scale = scaler.at("scale"),
                     .clean_steps = scaler.at("clean_steps"),
                     .hysteresis_left = scaler.at("hysteresis_left")},
          .clip_norms = manifest.at("clip_norms").get<std::vector<double>>()};
}

void continue_from(const TrainingState& state, Session& session) {
  if (!session.scaler.load_state(state.scaler)) {
    log_info("the loss scaler was in mode '{}' and is in '{}' now: it starts afresh", name(state.scaler.mode),
             name(session.scaler.config().mode));
  }
  session.clipper.restore(state.clip_norms);
  session.next_step = state.next_step;
}

}  // namespace mantissa
