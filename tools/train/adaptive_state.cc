#include "tools/train/adaptive_state.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

constexpr const char* kKey = "adaptive";

// JSON has no NaN and no Inf.
nlohmann::json finite(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

double from_finite(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

BadSignal bad_from(const nlohmann::json& bad) {
  return {.signal = bad.at("signal"),
          .step = bad.at("step"),
          .value = from_finite(bad.at("value")),
          .threshold = bad.at("threshold")};
}

AdaptivePrecision::State state_from(const nlohmann::json& saved) {
  AdaptivePrecision::State state{.level = saved.at("level"),
                                 .highest = saved.at("highest"),
                                 .switches = saved.at("switches"),
                                 .returns = saved.at("returns"),
                                 .raised = saved.at("raised"),
                                 .changed_at = saved.at("changed_at"),
                                 .uneasy_at = saved.at("uneasy_at"),
                                 .losses = saved.at("losses").get<std::deque<double>>(),
                                 .norms = saved.at("norms").get<std::deque<double>>(),
                                 .skips = saved.at("skips").get<std::deque<int64_t>>(),
                                 .stalled = saved.at("stalled")};
  if (!saved.at("best_validation").is_null()) state.best_validation = saved.at("best_validation").get<double>();
  for (const nlohmann::json& bad : saved.at("bad")) state.bad.push_back(bad_from(bad));
  return state;
}

}  // namespace

nlohmann::json to_json(const BadSignal& bad) {
  return {{"signal", bad.signal}, {"step", bad.step}, {"value", finite(bad.value)}, {"threshold", bad.threshold}};
}

nlohmann::json to_json(const AdaptivePrecision::State& state) {
  nlohmann::json bad = nlohmann::json::array();
  for (const BadSignal& signal : state.bad) bad.push_back(to_json(signal));
  return {{"level", state.level},
          {"highest", state.highest},
          {"switches", state.switches},
          {"returns", state.returns},
          {"raised", state.raised},
          {"changed_at", state.changed_at},
          {"uneasy_at", state.uneasy_at},
          {"losses", state.losses},
          {"norms", state.norms},
          {"skips", state.skips},
          {"best_validation", state.best_validation ? nlohmann::json(*state.best_validation) : nullptr},
          {"stalled", state.stalled},
          {"bad", bad}};
}

std::optional<AdaptivePrecision> adaptive_from(const Config& run, int64_t steps, const nlohmann::json& trainer_state) {
  if (!adapts(run)) return std::nullopt;
  const AdaptiveOptions& options = run.precision_adaptive.options;
  if (!trainer_state.is_object() || !trainer_state.contains(kKey)) {
    return AdaptivePrecision(options, phase_count(run), steps);
  }
  return AdaptivePrecision(options, phase_count(run), state_from(trainer_state.at(kKey)));
}

int phase_of(const Config& run, int64_t steps, const nlohmann::json& trainer_state) {
  const auto adaptive = adaptive_from(run, steps, trainer_state);
  return adaptive ? adaptive->level() : phase_at(run, steps);
}

Config config_of(const Config& run, int64_t steps, const nlohmann::json& trainer_state) {
  return in_phase(run, phase_of(run, steps, trainer_state));
}

}  // namespace mantissa
