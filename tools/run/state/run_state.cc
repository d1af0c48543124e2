#include "tools/run/state/run_state.h"

#include <cmath>
#include <limits>
#include <span>

#include "comm/comm_options.h"
#include "tools/config/precision_phases.h"
#include "tools/run/state/optional_json.h"
#include "tools/run/state/run_folder.h"

namespace mantissa {

void to_json(nlohmann::json& j, const BadSignal& bad) {
  j = {{"signal", bad.signal}, {"step", bad.step}, {"value", bad.value}, {"threshold", bad.threshold}};
}

static void from_json(const nlohmann::json& j, BadSignal& bad) {
  const nlohmann::json& value = j.at("value");
  bad = {.signal = j.at("signal"),
         .step = j.at("step"),
         .value = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>(),
         .threshold = j.at("threshold")};
}

void to_json(nlohmann::json& j, const RollbackPoint& point) { j = {{"step", point.step}, {"folder", point.folder}}; }

void from_json(const nlohmann::json& j, RollbackPoint& point) {
  point = {.step = j.at("step"), .folder = j.at("folder")};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AdaptivePrecision::State, level, highest, switches, returns, raised, changed_at,
                                   uneasy_at, uneasy, losses, norms, skips, best_validation, stalled, bad)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PrecisionFallback::Layer, levels, returns, since, overflows)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SpikeDetector::Sample, step, loss, norm)

namespace {

// The range of numbers: '*' stands for each entry of a list or map. Without other bounds, they count steps: exact as
// doubles, and far from where sums of them overflow.
struct NumberRange {
  std::vector<std::string_view> paths;
  double least = 0.0, most = 1e15;
  bool is_whole = true;
};
constexpr double kMostInt = std::numeric_limits<int>::max();

void require_number(const NumberRange& range, const nlohmann::json& value, std::string_view rest,
                    const std::string& name) {
  if (rest.empty()) {
    const bool is_number = range.is_whole ? value.is_number_integer() : value.is_number();
    if (is_number && value.get<double>() >= range.least && value.get<double>() <= range.most) return;
    throw DamagedEntry("'{}' is damaged: expected a {}number from {} to {}, got {}", name,
                       range.is_whole ? "whole " : "", range.least, range.most, value.dump());
  }
  const size_t dot = rest.find('.');
  const std::string_view key = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  if (!value.is_structured()) return;  // such an entry, like a missing one, is the reader's business
  for (const auto& [found, item] : value.items()) {
    if (key == "*" || key == found) require_number(range, item, rest, name.empty() ? found : name + "." + found);
  }
}

// DamagedEntry, which calls the value `name`, for a number out of its range.
void require_in(std::span<const NumberRange> ranges, const nlohmann::json& value, const std::string& name) {
  for (const NumberRange& range : ranges) {
    for (const std::string_view path : range.paths) require_number(range, value, path, name);
  }
}

// Checks the entry "run" of a manifest. No run can have saved other numbers: indices below 0, sums that overflow.
void require_possible_state(const nlohmann::json& run) {
  const NumberRange ranges[] = {
      {{"faults_in_a_row", "skips_in_a_row", "spikes_in_a_row", "rollbacks", "adaptive.level", "adaptive.highest",
        "adaptive.switches", "adaptive.returns", "adaptive.stalled", "fallback.*.levels", "fallback.*.returns"},
       0.0,
       kMostInt},
      {{"statistics.applied", "statistics.skipped", "statistics.scale_changes", "statistics.grad_norms.count",
        "statistics.newest_scales.*.0", "adaptive.uneasy_at", "adaptive.skips.*", "fallback.*.since",
        "fallback.*.overflows.*"}},
      {{"statistics.grad_norms.bins.*.*"}, -1e15},
      {{"statistics.newest_scales.*.1"}, 0.0, std::numeric_limits<float>::max(), false},
      {{"adaptive.changed_at"}, -1.0},
  };
  require_in(ranges, run, "run");
}

ScalerMode scaler_mode(const std::string& word) {
  for (const ScalerMode mode : {ScalerMode::kNone, ScalerMode::kStatic, ScalerMode::kDynamic}) {
    if (word == name(mode)) return mode;
  }
  throw DamagedEntry("'scaler.mode' is damaged: expected none, static or dynamic, got '{}'", word);
}

// The gradient prescale of the lanes and micro-batches that saved.
int saved_prescale_log2(const nlohmann::json& manifest) {
  const TrainConfig saved = parse_config(manifest.at("config").get<std::string>(), "the checkpoint's config").train;
  const bool has_lanes = manifest.contains("lanes");  // not before they were introduced: ranks were lanes
  const int64_t lanes = manifest.at(has_lanes ? "lanes" : "ranks"), sequences = saved.micro_batch * lanes;
  if (saved.global_batch % sequences != 0) {
    throw DamagedEntry(
        "'{}' is damaged: expected a number by which {} micro-batches of train.global_batch can be divided, got {}",
        has_lanes ? "lanes" : "ranks", saved.global_batch / saved.micro_batch, lanes);
  }
  return gradient_prescale_log2(lanes, saved.global_batch / sequences);
}

// No run can have saved other numbers. They would be defects later on: indices below 0, sums that overflow.
void require_possible_numbers(const nlohmann::json& manifest) {
  constexpr double kMostDouble = std::numeric_limits<double>::max();
  constexpr double kMostScale = std::numeric_limits<float>::max(),
                   kLeastScale = std::numeric_limits<float>::denorm_min();
  const NumberRange ranges[] = {
      {{"next_step", "skipped_batches", "format_version", "rollback_point.step", "spike_window.*.step"}},
      {{"applied_steps"}, 0.0, static_cast<double>(manifest.at("next_step").get<int64_t>())},
      {{"proven_step"}, -1.0},
      {{"ranks", "lanes"}, 1.0, kMostLanes},
      {{"scaler.scale"}, kLeastScale, kMostScale, false},
      {{"scaler.clean_steps"}, -1e15},
      {{"scaler.hysteresis_left"}, 1.0, kMostInt},
      {{"clip_norms.*"}, 0.0, kMostDouble, false},
  };
  require_in(ranges, manifest, "");
}

}  // namespace

RunState::RunState(const Config& run, int64_t steps_done) : fallback(run.precision_fallback) {
  if (adapts(run)) adaptive.emplace(run.precision_adaptive.options, phase_count(run), steps_done);
}

nlohmann::json to_json(const RunState& state) {
  nlohmann::json saved = {{"statistics", state.statistics},
                          {"faults_in_a_row", state.faults_in_a_row},
                          {"skips_in_a_row", state.skips_in_a_row},
                          {"spikes_in_a_row", state.spikes_in_a_row},
                          {"rollbacks", state.rollbacks},
                          {"fallback", state.fallback.state()},
                          {"first_validation_loss", state.first_validation_loss}};
  if (state.adaptive) saved["adaptive"] = state.adaptive->state();
  if (state.base) saved["base"] = {{"size_bytes", state.base->size_bytes}, {"xxh3_128", state.base->xxh3_128}};
  return saved;
}

RunState run_state_from(const Config& run, int64_t steps_done, const nlohmann::json& saved) {
  require_possible_state(saved);
  RunState state(run, steps_done);
  saved.at("statistics").get_to(state.statistics);
  saved.at("faults_in_a_row").get_to(state.faults_in_a_row);
  state.skips_in_a_row = saved.value("skips_in_a_row", 0);
  state.spikes_in_a_row = saved.value("spikes_in_a_row", 0);
  state.rollbacks = saved.value("rollbacks", 0);
  state.proven_step = saved.value("proven_step", int64_t{-1});
  state.rollback_point = saved.value("rollback_point", std::optional<RollbackPoint>());
  saved.at("first_validation_loss").get_to(state.first_validation_loss);
  if (saved.contains("fallback")) {
    state.fallback = PrecisionFallback(run.precision_fallback, saved.at("fallback").get<PrecisionFallback::State>());
  }
  if (state.adaptive && saved.contains("adaptive")) {
    nlohmann::json adaptive = saved.at("adaptive");
    adaptive.emplace("uneasy", nlohmann::json::array());  // checkpoints before 27 November 2026 have none
    state.adaptive.emplace(run.precision_adaptive.options, phase_count(run), adaptive.get<AdaptivePrecision::State>());
  }
  return state;
}

int phase_of(const Config& run, int64_t steps_done, const RunState& state) {
  return state.adaptive ? state.adaptive->level() : phase_at(run, steps_done);
}

Config config_of(const Config& run, int64_t steps_done, const nlohmann::json& saved) {
  return in_phase(run, phase_of(run, steps_done, run_state_from(run, steps_done, saved)));
}

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
