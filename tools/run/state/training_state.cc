#include "tools/run/state/training_state.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

#include "comm/comm_options.h"
#include "tools/run/state/manifest.h"

namespace mantissa {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SpikeDetector::Sample, step, loss, norm)

namespace {

ScalerMode scaler_mode(const std::string& word) {
  for (const ScalerMode mode : {ScalerMode::kNone, ScalerMode::kStatic, ScalerMode::kDynamic}) {
    if (word == name(mode)) return mode;
  }
  throw DamagedEntry(fmt::format("'scaler.mode' is damaged: expected none, static or dynamic, got '{}'", word));
}

// The gradient prescale of the ranks and micro-batches that saved.
int saved_prescale_log2(const nlohmann::json& manifest) {
  const TrainConfig saved = parse_config(manifest.at("config").get<std::string>(), "the checkpoint's config").train;
  const int64_t ranks = manifest.at("ranks"), sequences = saved.micro_batch * ranks;
  if (saved.global_batch % sequences != 0) {
    throw DamagedEntry(fmt::format(
        "'ranks' is damaged: expected a number by which {} micro-batches of train.global_batch can be divided, got {}",
        saved.global_batch / saved.micro_batch, ranks));
  }
  return gradient_prescale_log2(ranks, saved.global_batch / sequences);
}

// No run can have saved other numbers. They would be defects later on: indices below 0, sums that overflow.
void require_possible_numbers(const nlohmann::json& manifest) {
  constexpr double kMostDouble = std::numeric_limits<double>::max();
  constexpr double kMostScale = std::numeric_limits<float>::max(),
                   kLeastScale = std::numeric_limits<float>::denorm_min();
  const NumberRange ranges[] = {
      {"next_step"},
      {"applied_steps", 0.0, static_cast<double>(manifest.at("next_step").get<int64_t>())},
      {"skipped_batches"},
      {"proven_step", -1.0},
      {"format_version"},
      {"rollback_point.step"},
      {"ranks", 1.0, 1e6},
      {"scaler.scale", kLeastScale, kMostScale, false},
      {"scaler.clean_steps", -1e15},
      {"scaler.hysteresis_left", 1.0, kMostInt},
      {"clip_norms.*", 0.0, kMostDouble, false},
      {"spike_window.*.step"},
  };
  require_in(ranges, manifest, "");
}

}  // namespace

double TrainingState::gradient_factor() const {
  return std::ldexp(static_cast<double>(scaler.scale), gradient_prescale_log2);
}

nlohmann::json to_json(const TrainingState& state) {
  return {{"next_step", state.next_step},
          {"applied_steps", state.applied_steps},
          {"scaler",
           {{"mode", name(state.scaler.mode)},
            {"scale", state.scaler.scale},
            {"clean_steps", state.scaler.clean_steps},
            {"hysteresis_left", state.scaler.hysteresis_left}}},
          {"clip_norms", state.clip_norms},
          {"spike_window", state.spike_window},
          {"skipped_batches", state.skipped_batches}};
}

TrainingState training_state_from(const nlohmann::json& manifest) {
  require_possible_numbers(manifest);
  const nlohmann::json& scaler = manifest.at("scaler");
  return {.next_step = manifest.at("next_step"),
          .applied_steps = manifest.at("applied_steps"),
          .scaler = {.mode = scaler_mode(scaler.at("mode")),
                     .scale = scaler.at("scale"),
                     .clean_steps = scaler.at("clean_steps"),
                     .hysteresis_left = scaler.at("hysteresis_left")},
          .gradient_prescale_log2 = saved_prescale_log2(manifest),
          .clip_norms = manifest.at("clip_norms").get<std::vector<double>>(),
          .spike_window = manifest.value("spike_window", std::vector<SpikeDetector::Sample>()),
          .skipped_batches = manifest.value("skipped_batches", int64_t{0})};
}

}  // namespace mantissa
