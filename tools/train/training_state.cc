#include "tools/train/training_state.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "core/base/log.h"

namespace mantissa {
namespace {

ScalerMode scaler_mode(const std::string& word) {
  return word == "dynamic" ? ScalerMode::kDynamic : word == "static" ? ScalerMode::kStatic : ScalerMode::kNone;
}

// Of the ranks and micro-batches that saved.
int saved_boost(const nlohmann::json& manifest) {
  const TrainConfig saved = parse_config(manifest.at("config").get<std::string>(), "the checkpoint's config").train;
  const int64_t ranks = manifest.at("ranks");
  return gradient_boost_log2(ranks, saved.global_batch / (saved.micro_batch * ranks));
}

}  // namespace

double TrainingState::gradient_factor() const {
  return std::ldexp(static_cast<double>(scaler.scale), gradient_boost_log2);
}

TrainingState state_of(const Session& session) {
  return {.next_step = session.next_step,
          .applied_steps = session.optimizer.applied_steps(),
          .scaler = session.scaler.state(),
          .gradient_boost_log2 = gradient_boost_log2(session.ranks(), session.micro_batches()),
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
          .gradient_boost_log2 = saved_boost(manifest),
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

void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session) {
  session.runtime.delayed_scales->load_state(scales, state_of(session).gradient_factor() / state.gradient_factor());
}

}  // namespace mantissa
