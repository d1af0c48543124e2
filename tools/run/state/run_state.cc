#include "tools/run/state/run_state.h"

#include <nlohmann/json.hpp>

#include <limits>

#include "tools/config/precision_phases.h"
#include "tools/run/state/manifest.h"
#include "tools/run/state/optional_json.h"

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

namespace {

// Checks the entry "run" of a manifest. No run can have saved other numbers: indices below 0, sums that overflow.
void require_possible_state(const nlohmann::json& run) {
  const NumberRange ranges[] = {
      {"faults_in_a_row", 0.0, kMostInt},
      {"skips_in_a_row", 0.0, kMostInt},
      {"spikes_in_a_row", 0.0, kMostInt},
      {"rollbacks", 0.0, kMostInt},
      {"statistics.applied"},
      {"statistics.skipped"},
      {"statistics.scale_changes"},
      {"statistics.grad_norms.count"},
      {"statistics.grad_norms.bins.*.*", -1e15},
      {"statistics.newest_scales.*.0"},
      {"statistics.newest_scales.*.1", 0.0, std::numeric_limits<float>::max(), false},
      {"adaptive.level", 0.0, kMostInt},
      {"adaptive.highest", 0.0, kMostInt},
      {"adaptive.switches", 0.0, kMostInt},
      {"adaptive.returns", 0.0, kMostInt},
      {"adaptive.changed_at", -1.0},
      {"adaptive.uneasy_at"},
      {"adaptive.skips.*"},
      {"adaptive.stalled", 0.0, kMostInt},
      {"fallback.*.levels", 0.0, kMostInt},
      {"fallback.*.returns", 0.0, kMostInt},
      {"fallback.*.since"},
      {"fallback.*.overflows.*"},
  };
  require_in(ranges, run, "run");
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

}  // namespace mantissa
