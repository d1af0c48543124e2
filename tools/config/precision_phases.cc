#include "tools/config/precision_phases.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config_binding.h"
#include "tools/config/validation.h"

namespace mantissa {
namespace {

const PrecisionPhase& entry_of(const Config& config, int phase) {
  return config.precision_schedule[static_cast<size_t>(phase - 1)];
}

const PrecisionConfig& precision_of(const Config& config, int phase) {
  if (adapts(config)) return config.precision_adaptive.levels[static_cast<size_t>(phase)];
  return phase == 0 ? config.precision : entry_of(config, phase).precision;
}

// Where the settings of the phase were written, by the names that they have in its own configuration.
ConfigOrigins origins_of(const Config& config, int phase) {
  const std::string prefix = phase_path(config, phase) + ".";
  ConfigOrigins origins = config.origins;
  for (const auto& [path, origin] : config.origins) {
    if (path.starts_with(prefix)) origins["precision." + path.substr(prefix.size())] = origin;
  }
  return origins;
}

// What speaks of rounding that some phases do not have.
void leave_out_meaningless(Config& phase) {
  const bool delayed = phase.precision.uses_delayed_scaling();
  if (!delayed) phase.precision.delayed = {};
  if (!delayed || phase.precision.keeps_weights_wide()) phase.comm.gather = WeightGather::kWorking;
  if (phase.precision.keeps_weights_wide()) phase.optimizer.adamw.weight_rounding = WeightRounding::kNearest;
}

std::string moment(const PrecisionPhase& entry) {
  return entry.after_tokens > 0 ? fmt::format("after_tokens = {}", entry.after_tokens)
                                : fmt::format("after_step = {}", entry.after_step);
}

void validate_moments(const Config& config, int phase) {
  const PrecisionPhase& entry = entry_of(config, phase);
  const std::string name = phase_name(config, phase);
  if ((entry.after_step > 0) == (entry.after_tokens > 0)) {
    throw ConfigError(
        fmt::format("{}: after_step = {} and after_tokens = {}: give one of them, above 0; until then the settings of "
                    "`precision` itself hold",
                    name, entry.after_step, entry.after_tokens));
  }
  if (phase_begin(config, phase) <= phase_begin(config, phase - 1)) {
    throw ConfigError(fmt::format("{}: {} comes at step {}, not behind that of {}, at step {}: write phases in order",
                                  name, moment(entry), phase_begin(config, phase), phase_name(config, phase - 1),
                                  phase_begin(config, phase - 1)));
  }
}

// That settings of all phases have a meaning in one of them.
void require_meaning(const Config& config) {
  bool delayed = false, narrow = false;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    const PrecisionConfig precision = in_phase(config, phase).precision;
    delayed |= precision.uses_delayed_scaling();
    narrow |= !precision.keeps_weights_wide();
  }
  const auto refuse = [&config](const char* setting, const char* needs) {
    throw ConfigError(fmt::format("{} has no meaning in any {}, none of which has {}: remove it", setting,
                                  adapts(config) ? "level of precision.adaptive" : "phase of precision.schedule",
                                  needs));
  };
  if (!delayed && config.precision.delayed != DelayedScalingOptions()) refuse("precision.delayed", "delayed scaling");
  if (!delayed && config.comm.gather == WeightGather::kF8) refuse("comm.gather = fp8", "delayed scaling");
  if (!narrow && config.optimizer.adamw.weight_rounding == WeightRounding::kStochastic) {
    refuse("optimizer.weight_rounding = stochastic", "working weights of 16 bits");
  }
}

// Bits of what the products of most layers multiply; nothing where rules for layers and ops say more than that.
std::optional<int> width(const PrecisionConfig& precision) {
  const bool has_rules = !precision.layers.empty() || precision.ops != PrecisionConfig().ops ||
                         precision.pattern.pattern != PrecisionPattern::kNone;
  if (has_rules) return std::nullopt;
  if (precision.recipe) {
    const FormatInfo& format = info(format_for(*precision.recipe, Role::kWeight).format);
    return 1 + format.exponent_bits + format.mantissa_bits;
  }
  return precision.compute == DType::kF32 ? 32 : 16;
}

void refuse_rising_levels(const Config& config) {
  const std::vector<PrecisionConfig>& levels = config.precision_adaptive.levels;
  for (size_t level = 1; level < levels.size(); ++level) {
    const auto before = width(levels[level - 1]), own = width(levels[level]);
    if (!before || !own || *own <= *before) continue;
    throw ConfigError(fmt::format("{} has {} bits, and {} has {}: give the level with the most precision first",
                                  phase_name(config, static_cast<int>(level)), *own,
                                  phase_name(config, static_cast<int>(level) - 1), *before));
  }
}

// What precision.adaptive asks of itself and of other settings.
void validate_adaptive(const Config& config) {
  const AdaptiveOptions& options = config.precision_adaptive.options;
  const auto refuse_if = [](bool impossible, const std::string& why) {
    if (impossible) throw ConfigError("precision.adaptive" + why);
  };
  if (!adapts(config)) {
    return refuse_if(options != AdaptiveOptions(),
                     ": these settings have no meaning without precision.adaptive.levels; give the levels, or remove "
                     "the section");
  }
  refuse_if(!config.precision_schedule.empty(),
            " and precision.schedule: both say which precision a step has, and a step cannot have two; remove one of "
            "them");
  try {
    validate(options, phase_count(config));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("precision.adaptive: {}", error.what()));
  }
  refuse_rising_levels(config);
  refuse_if(options.stalled_evaluations > 0 && config.train.eval_interval == 0,
            fmt::format(".stalled_evaluations = {} counts evaluations, and with train.eval_interval = 0 there are "
                        "none; give an interval, or stalled_evaluations: 0",
                        options.stalled_evaluations));
  refuse_if(options.stalled_evaluations == 0 && options.min_improvement > 0.0,
            fmt::format(".min_improvement = {:g} has no meaning with stalled_evaluations: 0; remove it, or give the "
                        "number of evaluations",
                        options.min_improvement));
  refuse_if(options.underflow_share > 0.0 && !config.probe.enabled,
            fmt::format(".underflow_share = {:g} is about what probes find, and with probe.enabled = false there are "
                        "none; give probe.enabled=true and the probe.interval to look at, or underflow_share: 0",
                        options.underflow_share));
  // Steps that nobody has looked at are not stable.
  const auto refuse_shorter = [&](bool watched, int64_t interval, const char* name) {
    refuse_if(watched && options.stable_steps > 0 && options.stable_steps < interval,
              fmt::format(".stable_steps = {} is below {} = {}, so that precision would go down before that was looked "
                          "at once; give at least as many stable_steps",
                          options.stable_steps, name, interval));
  };
  refuse_shorter(options.stalled_evaluations > 0, config.train.eval_interval, "train.eval_interval");
  refuse_shorter(options.underflow_share > 0.0, config.probe.interval, "probe.interval");
  refuse_shorter(options.curvature > 0.0, options.curvature_interval, "precision.adaptive.curvature_interval");
}

}  // namespace

int phase_count(const Config& config) {
  return static_cast<int>(adapts(config) ? config.precision_adaptive.levels.size()
                                         : config.precision_schedule.size() + 1);
}

int phase_at(const Config& config, int64_t steps) {
  if (adapts(config)) return config.precision_adaptive.options.start;
  int phase = 0;
  while (phase + 1 < phase_count(config) && phase_begin(config, phase + 1) <= steps) ++phase;
  return phase;
}

int64_t phase_begin(const Config& config, int phase) {
  if (phase == 0 || adapts(config)) return 0;
  const PrecisionPhase& entry = entry_of(config, phase);
  if (entry.after_tokens == 0) return entry.after_step;
  const int64_t step_tokens = config.train.global_batch * config.model.context;
  return entry.after_tokens / step_tokens + (entry.after_tokens % step_tokens != 0 ? 1 : 0);
}

int64_t phase_end(const Config& config, int phase) {
  return phase + 1 < phase_count(config) && !adapts(config)
             ? std::min(phase_begin(config, phase + 1), config.train.steps)
             : config.train.steps;
}

Config in_phase(const Config& config, int phase) {
  Config own = config;
  own.precision_schedule.clear();
  own.precision_adaptive.levels.clear();
  if (config.precision_schedule.empty() && !adapts(config)) return own;
  if (phase > 0 || adapts(config)) {
    own.precision = precision_of(config, phase);
    own.origins = origins_of(config, phase);
  }
  leave_out_meaningless(own);
  own.resolve_scaler_mode();
  return own;
}

Config at_step(const Config& config, int64_t steps) { return in_phase(config, phase_at(config, steps)); }

Config with_lifts(Config phase, const PrecisionFallback& fallback) {
  phase.lifts = fallback.lifts();
  if (!fallback.leaves_fp16()) return phase;
  const auto leave = [](DType& dtype) {
    if (dtype == DType::kF16) dtype = DType::kBF16;
  };
  leave(phase.precision.compute);
  const auto leave_setting = [&](std::optional<OpSetting>& setting) {
    if (auto* dtype = setting ? std::get_if<DType>(&*setting) : nullptr) leave(*dtype);
  };
  for (auto& op : phase.precision.ops) leave_setting(op);
  for (LayerOverride& layer : phase.precision.layers) leave_setting(layer.setting);
  phase.resolve_scaler_mode();
  return phase;
}

std::string phase_path(const Config& config, int phase) {
  if (adapts(config)) return fmt::format("precision.adaptive.levels[{}]", phase);
  return phase == 0 ? "precision" : fmt::format("precision.schedule[{}]", phase - 1);
}

std::string phase_name(const Config& config, int phase) {
  const std::string path = phase_path(config, phase);
  const auto origin = config.origins.find(path);
  return origin == config.origins.end() ? path : fmt::format("{} ({})", path, origin->second);
}

std::string phase_title(const Config& config, int phase) {
  if (adapts(config)) return fmt::format(", level {} of precision.adaptive", phase);
  return phase == 0 ? "" : fmt::format(", after step {}", phase_begin(config, phase));
}

void validate_phases(const Config& config) {
  validate_adaptive(config);
  if (!adapts(config)) validate(in_phase(config, 0));
  for (int phase = adapts(config) ? 0 : 1; phase < phase_count(config); ++phase) {
    if (!adapts(config)) validate_moments(config, phase);
    const std::string name = phase_name(config, phase);
    const Config own = in_phase(config, phase);
    try {
      validate(own);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", name, error.what()));
    }
    if (phase > 0 && flatten(own) == flatten(in_phase(config, phase - 1))) {
      throw ConfigError(fmt::format("{} changes nothing of {}: remove it, or give it another precision", name,
                                    phase_name(config, phase - 1)));
    }
  }
  if (phase_count(config) > 1) require_meaning(config);
}

}  // namespace mantissa
