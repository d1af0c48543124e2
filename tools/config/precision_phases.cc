#include "tools/config/precision_phases.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

const PrecisionPhase& entry_of(const Config& config, int phase) {
  return config.precision_schedule[static_cast<size_t>(phase - 1)];
}

const PrecisionConfig& precision_of(const Config& config, int phase) {
  if (adapts(config)) return config.precision_adaptive.levels[static_cast<size_t>(phase)];
  return phase == 0 ? config.precision : entry_of(config, phase).precision;
}

// The path of a phase with where it was written.
std::string phase_name(const Config& config, int phase, const ConfigOrigins& origins) {
  const std::string path = phase_path(config, phase);
  const auto origin = origins.find(path);
  return origin == origins.end() ? path : fmt::format("{} ({})", path, origin->second);
}

// The places at which the settings of a phase were written, by their names in the phase's own configuration.
ConfigOrigins origins_in_phase(const Config& config, int phase, const ConfigOrigins& origins) {
  const std::string prefix = phase_path(config, phase) + ".";
  ConfigOrigins own = origins;
  for (const auto& [path, origin] : origins) {
    if (path.starts_with(prefix)) own["precision." + path.substr(prefix.size())] = origin;
  }
  return own;
}

std::string moment(const PrecisionPhase& entry) {
  return entry.after_tokens > 0 ? fmt::format("after_tokens = {}", entry.after_tokens)
                                : fmt::format("after_step = {}", entry.after_step);
}

void validate_moments(const Config& config, int phase, const ConfigOrigins& origins) {
  const PrecisionPhase& entry = entry_of(config, phase);
  const std::string name = phase_name(config, phase, origins);
  require<ConfigError>(
      (entry.after_step > 0) != (entry.after_tokens > 0),
      "{}: after_step = {} and after_tokens = {}: give one of them, above 0; before it the settings of "
      "`precision` itself hold",
      name, entry.after_step, entry.after_tokens);
  require<ConfigError>(phase_begin(config, phase) > phase_begin(config, phase - 1),
                       "{}: {} comes at step {}, not after {}, which begins at step {}: write phases in "
                       "order",
                       name, moment(entry), phase_begin(config, phase), phase_name(config, phase - 1, origins),
                       phase_begin(config, phase - 1));
}

// Bits of the operands in the products of most layers; nothing if rules may change that.
std::optional<int> width(const PrecisionConfig& precision) {
  if (!precision.rules.empty() || precision.pattern != PrecisionPattern::kNone) return std::nullopt;
  if (precision.recipe) {
    const FormatInfo& format = info(format_for(*precision.recipe, Role::kWeight).format);
    return 1 + format.exponent_bits + format.mantissa_bits;
  }
  return static_cast<int>(8 * size_bytes(precision.compute));
}

void refuse_rising_levels(const Config& config, const ConfigOrigins& origins) {
  const std::vector<PrecisionConfig>& levels = config.precision_adaptive.levels;
  for (size_t level = 1; level < levels.size(); ++level) {
    const auto before = width(levels[level - 1]), own = width(levels[level]);
    if (!before || !own || *own <= *before) continue;
    throw ConfigError(fmt::format("{} has {} bits, and {} has {}: give the level with the most precision first",
                                  phase_name(config, static_cast<int>(level), origins), *own,
                                  phase_name(config, static_cast<int>(level) - 1, origins), *before));
  }
}

// The ladder itself, and the settings that its signals need.
void validate_ladder(const Config& config, const ConfigOrigins& origins) {
  const AdaptiveOptions& options = config.precision_adaptive.options;
  const auto refuse_if = [](bool impossible, const std::string& why) {
    if (impossible) throw ConfigError("precision.adaptive" + why);
  };
  refuse_if(!config.precision_schedule.empty(),
            " and precision.schedule: both set the precision of a step; remove one of them");
  try {
    validate(options, phase_count(config));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("precision.adaptive: {}", error.what()));
  }
  refuse_rising_levels(config, origins);
  refuse_if(options.stalled_evaluations > 0 && config.train.eval_interval == 0,
            fmt::format(".stalled_evaluations = {} counts evaluations, and with train.eval_interval = 0 there are "
                        "none; give an interval, or stalled_evaluations: 0",
                        options.stalled_evaluations));
  refuse_if(options.underflow_share > 0.0 && !config.probe.enabled,
            fmt::format(".underflow_share = {:g} needs probes, and probe.enabled = false; give probe.enabled=true and "
                        "a probe.interval, or underflow_share: 0",
                        options.underflow_share));
  refuse_if(options.gradient_noise > 0.0 && config.train.global_batch <= config.train.micro_batch,
            fmt::format(".gradient_noise = {:g} compares micro-batches, and train.global_batch = {} has one of "
                        "train.micro_batch = {}; give a smaller train.micro_batch, or gradient_noise: 0",
                        options.gradient_noise, config.train.global_batch, config.train.micro_batch));
  // Steps without a measurement are not stable.
  const auto refuse_shorter = [&](bool watched, int64_t interval, const char* name) {
    refuse_if(watched && options.stable_steps > 0 && options.stable_steps < interval,
              fmt::format(".stable_steps = {} is below {} = {}, so that precision would go down before the first "
                          "measurement; give at least as many stable_steps",
                          options.stable_steps, name, interval));
  };
  refuse_shorter(options.stalled_evaluations > 0, config.train.eval_interval, "train.eval_interval");
  refuse_shorter(options.underflow_share > 0.0, config.probe.interval, "probe.interval");
  refuse_shorter(options.curvature > 0.0, options.curvature_interval, "the interval of curvature");
  refuse_shorter(options.gradient_noise > 0.0, options.noise_interval, "the interval of gradient_noise");
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
  if (phase_count(config) == 1) return own;
  own.precision = precision_of(config, phase);
  own.resolve_scaler_mode();
  return own;
}

std::string phase_path(const Config& config, int phase) {
  if (adapts(config)) return fmt::format("precision.adaptive.levels[{}]", phase);
  return phase == 0 ? "precision" : fmt::format("precision.schedule[{}]", phase - 1);
}

std::vector<std::string> phase_names(const Config& config) {
  std::vector<std::string> names;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    names.push_back(precision_name(precision_of(config, phase)));
  }
  std::vector<std::string> distinct = names;
  for (size_t phase = 0; phase < names.size(); ++phase) {
    if (std::ranges::count(names, names[phase]) > 1) distinct[phase] = phase_path(config, static_cast<int>(phase));
  }
  return distinct;
}

std::string phase_title(const Config& config, int phase) {
  if (adapts(config)) return ", with " + phase_path(config, phase);
  return phase == 0 ? "" : fmt::format(", after step {}", phase_begin(config, phase));
}

void validate_phases(const Config& config, const ConfigOrigins& origins) {
  if (adapts(config)) validate_ladder(config, origins);
  for (int phase = 0; phase < phase_count(config); ++phase) {
    const bool is_base = phase == 0 && !adapts(config);
    require<ConfigError>(
        phase_count(config) == 1 || !precision_of(config, phase).is_fp64(),
        "{}: compute = fp64 holds for a whole training, whose state is then fp64; give another precision "
        "here, or remove precision.schedule and precision.adaptive",
        phase_name(config, phase, origins));
    if (!is_base && !adapts(config)) validate_moments(config, phase, origins);
    try {
      validate(in_phase(config, phase), origins_in_phase(config, phase, origins));
    } catch (const ConfigError& error) {
      if (is_base) throw;
      throw ConfigError(fmt::format("{}: {}", phase_name(config, phase, origins), error.what()));
    }
  }
}

std::vector<std::string> uniform_precisions() {
  std::vector<std::string> names = {"fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16"};
  for (const Scaling scaling : kAllScalings) names.emplace_back(name(scaling));
  return names;
}

std::optional<PrecisionConfig> parse_precision(const std::string& text) {
  PrecisionConfig precision;
  std::string base = text;
  for (const auto& [pattern, value] : config_names::kPattern) {
    const std::string ending = fmt::format(":{}", pattern);
    if (value == PrecisionPattern::kNone || !base.ends_with(ending)) continue;
    precision.pattern = value;
    base.resize(base.size() - ending.size());
    break;
  }
  if (base == "fp8") base = "delayed";
  if (base == "fp4") base = "nvfp4";
  if (const auto products = parse_fp32_products(base)) {
    precision.compute = DType::kF32;
    precision.fp32_products = *products;
  } else if (const auto dtype = parse_float_dtype(base)) {
    precision.compute = *dtype;
  } else {
    precision.recipe = parse_recipe(base);
    if (!precision.recipe) return std::nullopt;
  }
  return precision;
}

std::string precision_name(const PrecisionConfig& precision) {
  const bool has_parts = precision.compute == DType::kF32 && precision.fp32_products != Fp32Products::kFp32;
  std::string text(precision.recipe ? name(*precision.recipe)
                   : has_parts      ? name(precision.fp32_products)
                                    : name(precision.compute));
  for (const auto& [pattern, value] : config_names::kPattern) {
    if (value == precision.pattern && value != PrecisionPattern::kNone) text += fmt::format(":{}", pattern);
  }
  return text;
}

std::string without_alias(const std::string& name) {
  const auto precision = parse_precision(name);
  return precision ? precision_name(*precision) : name;
}

std::optional<RuleFormat> parse_low_format(const std::string& text) {
  if (const auto dtype = parse_float_dtype(text); dtype && *dtype != wide_of(*dtype)) return *dtype;
  if (const auto recipe = parse_recipe(text)) return *recipe;
  return std::nullopt;
}

}  // namespace mantissa
