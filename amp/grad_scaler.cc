#include "amp/grad_scaler.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

void require(bool condition, std::string_view key, std::string_view expected, double got) {
  if (!condition) throw ConfigError(fmt::format("[grad_scaler] {} must be {}, got {}", key, expected, got));
}

struct Preset {
  std::string_view name;
  ScalerConfig config;
};
constexpr Preset kPresets[] = {
    {"pytorch", {.min_scale = 0.0f, .floor_policy = FloorPolicy::kClamp}},
    {"megatron",
     {.init_scale = 0x1p32f, .growth_interval = 1000, .hysteresis = 2, .floor_policy = FloorPolicy::kClamp}},
    {"deepspeed", {.growth_interval = 1000, .growth_delay = 1, .hysteresis = 2, .floor_policy = FloorPolicy::kStop}},
    {"deepspeed_consecutive",
     {.growth_interval = 1000,
      .growth_delay = 1,
      .hysteresis = 2,
      .refill = HysteresisRefill::kOnCleanStep,
      .floor_policy = FloorPolicy::kStop}},
    {"deepspeed_0.17.0", {.growth_interval = 1000, .hysteresis = 2, .floor_policy = FloorPolicy::kStop}}};

// By ScalerMode, by ScalerEvent.
constexpr std::string_view kModeNames[] = {"none", "static", "dynamic"};
constexpr std::string_view kEventNames[] = {"unchanged",
                                            "grew",
                                            "growth capped",
                                            "backed off",
                                            "hysteresis consumed",
                                            "held at floor",
                                            "overflow at floor",
                                            "non-finite loss",
                                            "spike",
                                            "non-finite state"};

}  // namespace

std::vector<std::string_view> scaler_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

ScalerConfig scaler_preset(std::string_view name) {
  const auto* const found = std::ranges::find(kPresets, name, &Preset::name);
  if (found != std::end(kPresets)) return found->config;
  throw ConfigError(
      fmt::format("[scaler_preset] expected one of {}, got '{}'", fmt::join(scaler_preset_names(), ", "), name));
}

void validate(const ScalerConfig& config) {
  if (config.mode == ScalerMode::kNone) return;
  const float scale = config.init_scale;
  require(std::isfinite(scale) && scale > 0.0f, "init_scale", "finite and > 0", scale);
  if (config.mode == ScalerMode::kStatic) return;
  require(std::isfinite(config.growth_factor) && config.growth_factor > 1.0, "growth_factor", "finite and > 1",
          config.growth_factor);
  require(config.backoff_factor > 0.0 && config.backoff_factor < 1.0, "backoff_factor", "between 0 and 1",
          config.backoff_factor);
  require(config.growth_interval > 0, "growth_interval", "> 0", static_cast<double>(config.growth_interval));
  require(config.growth_delay >= 0, "growth_delay", ">= 0", static_cast<double>(config.growth_delay));
  require(config.hysteresis >= 1, "hysteresis", ">= 1", config.hysteresis);
  require(config.min_scale >= 0.0f && config.min_scale <= scale, "min_scale",
          fmt::format("between 0 and init_scale = {}", scale), config.min_scale);
  require(std::isfinite(config.max_scale) && config.max_scale >= scale, "max_scale",
          fmt::format("finite and >= init_scale = {}", scale), config.max_scale);
}

std::string_view name(ScalerMode mode) { return kModeNames[static_cast<size_t>(mode)]; }
std::string_view name(ScalerEvent event) { return kEventNames[static_cast<size_t>(event)]; }

bool ends_run(ScalerEvent event, const ScalerConfig& config) {
  const bool at_floor = event == ScalerEvent::kAtFloorFault && config.floor_policy == FloorPolicy::kStop;
  return event == ScalerEvent::kStateFault || (at_floor && config.mode == ScalerMode::kDynamic);
}

GradScaler::GradScaler(const ScalerConfig& config) : config_(config) {
  validate(config_);
  state_.mode = config_.mode;
  if (config_.mode != ScalerMode::kNone) state_.scale = config_.init_scale;
  if (config_.mode == ScalerMode::kDynamic) {
    state_.clean_steps = -config_.growth_delay;
    state_.hysteresis_left = config_.hysteresis;
  }
}

float GradScaler::scale() {
  MANTISSA_CHECK(
      phase_ == Phase::kIdle || phase_ == Phase::kAccumulating,
      "[grad_scaler.scale] the gradients of this window are already unscaled: another backward pass would mix "
      "scaled gradients in. Call update() first; to read the scale call current_scale()");
  phase_ = Phase::kAccumulating;
  return state_.scale;
}

float GradScaler::unscale() {
  MANTISSA_CHECK(phase_ != Phase::kIdle,
                 "[grad_scaler.unscale] no backward pass was scaled since the last update(). Call scale() first");
  MANTISSA_CHECK(phase_ != Phase::kUnscaled,
                 "[grad_scaler.unscale] called twice since the last update(): the gradients would be divided twice");
  MANTISSA_CHECK(phase_ != Phase::kStepped, "[grad_scaler.unscale] called after step(). Call update() first");
  phase_ = Phase::kUnscaled;
  return static_cast<float>(1.0 / static_cast<double>(state_.scale));
}

bool GradScaler::step(StepOutcome outcome) {
  MANTISSA_CHECK(phase_ != Phase::kStepped, "[grad_scaler.step] called twice since the last update()");
  MANTISSA_CHECK(
      phase_ == Phase::kUnscaled || outcome == StepOutcome::kLossFault || outcome == StepOutcome::kStateFault,
      "[grad_scaler.step] the gradients still carry the loss scale. Call unscale() first");
  phase_ = Phase::kStepped;
  outcome_ = outcome;
  return outcome == StepOutcome::kClean;
}

ScalerEvent GradScaler::update() {
  MANTISSA_CHECK(phase_ == Phase::kStepped,
                 "[grad_scaler.update] no outcome was recorded since the last update(). Call step() first");
  phase_ = Phase::kIdle;
  switch (outcome_) {
    case StepOutcome::kClean:
      return on_clean_step();
    case StepOutcome::kGradientOverflow:
      return on_overflow();
    case StepOutcome::kSpike:
      return ScalerEvent::kSpike;
    case StepOutcome::kLossFault:
      break;
    case StepOutcome::kStateFault:
      return ScalerEvent::kStateFault;
  }
  // Says nothing about the gradients' range, as a spike: the state stays, growth counter included.
  return ScalerEvent::kLossFault;
}

ScalerEvent GradScaler::on_clean_step() {
  if (config_.mode != ScalerMode::kDynamic) return ScalerEvent::kUnchanged;
  if (config_.refill == HysteresisRefill::kOnCleanStep) state_.hysteresis_left = config_.hysteresis;
  if (++state_.clean_steps < config_.growth_interval) return ScalerEvent::kUnchanged;
  state_.clean_steps = 0;
  state_.hysteresis_left = config_.hysteresis;
  const double grown = static_cast<double>(state_.scale) * config_.growth_factor;
  if (grown > static_cast<double>(config_.max_scale)) return ScalerEvent::kGrowthCapped;
  const float before = state_.scale;
  state_.scale = static_cast<float>(grown);
  return state_.scale > before ? ScalerEvent::kGrew : ScalerEvent::kUnchanged;  // 0, possible without a floor, stays 0
}

ScalerEvent GradScaler::on_overflow() {
  const ScalerEvent at_floor =
      config_.floor_policy == FloorPolicy::kClamp ? ScalerEvent::kHeldAtFloor : ScalerEvent::kAtFloorFault;
  if (config_.mode != ScalerMode::kDynamic) return at_floor;
  state_.clean_steps = -config_.growth_delay;
  if (state_.hysteresis_left > 1) {
    --state_.hysteresis_left;
    return ScalerEvent::kHysteresisConsumed;
  }
  const auto lowered = static_cast<float>(static_cast<double>(state_.scale) * config_.backoff_factor);
  const float next = std::max(lowered, config_.min_scale);
  if (next >= state_.scale) return at_floor;
  state_.scale = next;
  return ScalerEvent::kBackedOff;
}

GradScaler::State GradScaler::state() const {
  MANTISSA_CHECK(phase_ == Phase::kIdle,
                 "[grad_scaler.state] taken inside a window: its outcome would be lost. Call update() first");
  return state_;
}

bool GradScaler::load_state(const State& state) {
  MANTISSA_CHECK(
      phase_ == Phase::kIdle,
      "[grad_scaler.load_state] the scale must stay fixed within an accumulation window. Call update() first");
  if (state.mode != config_.mode) return false;
  if (config_.mode != ScalerMode::kDynamic) return true;
  if (!std::isfinite(state.scale) || state.scale < 0.0f || state.hysteresis_left < 1) {
    throw CheckpointError(
        fmt::format("[grad_scaler] damaged state: expected a finite scale >= 0 and hysteresis >= 1, got "
                    "scale {} and hysteresis {}",
                    state.scale, state.hysteresis_left));
  }
  state_.scale = std::clamp(state.scale, config_.min_scale, config_.max_scale);
  state_.clean_steps = std::max(state.clean_steps, -config_.growth_delay);
  state_.hysteresis_left = std::min(state.hysteresis_left, config_.hysteresis);
  return true;
}

}  // namespace mantissa
