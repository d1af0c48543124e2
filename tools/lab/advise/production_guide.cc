#include "tools/lab/advise/recommendation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "tools/config/config_binding.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {
namespace {

constexpr int64_t kLooks = 20;  // evaluations, probed steps and checkpoints in a run, at least
// The value of configs/adaptive.yaml. It finds runs that underflow early enough to rescue them
// (docs/results/adaptive.md).
constexpr double kUnderflowThreshold = 0.5;
// The least thresholds. Healthy runs of batches of 512 and 1024 tokens rose by up to 0.75 nats in 3000 steps, and
// to 2.9 times the norm's quantile.
constexpr double kLeastRise = 1.0, kLeastFactor = 4.0;

// Shortens an interval, or turns it on, for kLooks in a run. In a long run, none (0 or -1) becomes `usual`.
void look_often(int64_t& interval, int64_t steps, int64_t usual) {
  const int64_t longest = std::max<int64_t>(steps / kLooks, 1);
  if (interval <= 0 || interval > longest) interval = std::min(longest, usual);
}

double rounded_up_to_two_digits(double value) {
  const double digits = std::pow(10.0, 1.0 - std::floor(std::log10(value)));
  return std::ceil(value * digits) / digits;
}

bool rounds_operands(const PrecisionConfig& precision, int64_t blocks) {
  return std::ranges::any_of(expand(precision, blocks),
                             [](const PrecisionRule& rule) { return std::holds_alternative<Recipe>(*rule.format); });
}

Config production_config(const Config& given, const MeasuredPrecision& chosen, const MeasuredPrecision* above,
                         const SignalThresholds& thresholds) {
  // `above` first, so that its settings stay: masters for fp16.
  Config config = in_precision(above == nullptr ? given : in_precision(given, above->precision), chosen.precision);
  const int64_t steps = config.train.steps;
  if (config.data.has_validation()) look_often(config.train.eval_interval, steps, TrainConfig().eval_interval);
  look_often(config.checkpoint.interval, steps, CheckpointConfig().interval);
  if (config.checkpoint.resume == "none") config.checkpoint.resume = "auto";
  if (config.precision.is_fp64()) return config;  // without probes and lifts
  config.probe.enabled = true;
  look_often(config.probe.interval, steps, ProbeConfig().interval);
  const bool is_narrow = rounds_operands(config.precision, config.model.layers);
  if ((is_narrow || config.precision.uses_fp16()) && config.precision_fallback.overflows == 0)
    config.precision_fallback.overflows = 2;
  FloorPolicy& floor = config.scaler.scaler.floor_policy;
  if (config.precision.uses_fp16() && floor == FloorPolicy::kFault) floor = FloorPolicy::kLift;
  if (above == nullptr) return config;
  config.precision_adaptive.levels = {above->precision, config.precision};
  AdaptiveOptions& options = config.precision_adaptive.options;
  options = {.start = 1, .stable_steps = std::max(AdaptiveOptions().stable_steps, config.probe.interval)};
  options.warmup = options.window;  // as thresholds_of() compares
  options.rollback = true;
  options.skipped_share = 1.0 / options.window;
  options.loss_rise = thresholds.loss_rise;
  options.norm_factor = thresholds.norm_factor;
  if (is_narrow) options.underflow_share = kUnderflowThreshold;
  return config;
}

Json monitor_of(const Config& config, const Measurement& measurement, const MeasuredPrecision& chosen,
                const SignalThresholds& thresholds) {
  const AdaptiveOptions window;
  const Json& summary = chosen.summary;
  Json monitor = Json::array();
  const auto add = [&](const char* fields, const std::string& watch) {
    monitor.push_back({{"fields", fields}, {"watch", watch}});
  };
  std::string watch_loss, watch_norm = "no threshold, for the same reason";
  if (thresholds.is_known()) {
    watch_loss = fmt::format(
        "alarm at {:g} nats above the median of {} steps: with the norm's, a false alarm in at most {:g} % of runs of "
        "{} like the {} measured, if tails go on as the largest tenth to fiftieth of the measured ones (batches of {} "
        "tokens; smaller ones vary more)",
        thresholds.loss_rise, window.window, 100.0 * kFalseAlarm, counted(config.train.steps, "step"),
        thresholds.compared, measurement.tokens_per_step);
    watch_norm = fmt::format(
        "alarm at {:g} times the {:g} quantile of {} steps: it finds a step of ten times its norm in {} % of cases, of "
        "a hundred times in {} %",
        thresholds.norm_factor, window.norm_quantile, window.window, per_cent(thresholds.tenfold),
        per_cent(thresholds.hundredfold));
  } else {
    watch_loss = "no threshold: " + thresholds.why_none;
  }
  add("step.loss, mantissa_loss", watch_loss);
  add("step.grad_norm, mantissa_gradient_norm", watch_norm);
  add("step.applied, step.skip_reason, mantissa_skipped_steps_total",
      fmt::format("{} % of the measured steps were skipped for the loss scale, {} % by faults; report each fault",
                  per_cent(summary.at("overflow_share")), per_cent(summary.at("fault_share"))));
  if (config.precision.uses_fp16()) {
    add("step.scale, mantissa_loss_scale",
        fmt::format("alarm below a sixteenth of {:g}, the least of the measured runs: overflows bring it down",
                    summary.at("smallest_scale")));
  }
  if (config.train.eval_interval > 0 && config.data.has_validation()) {
    std::string watch = "slow damage shows in no signal; compare again on this model";
    if (chosen.name != measurement.baseline) {
      watch += fmt::format(" (measured: {} nats beside {})", with_error("+")(summary.at("loss_difference")),
                           measurement.baseline);
    }
    add("validation.loss, mantissa_validation_loss", watch);
  }
  if (config.probe.enabled) {
    add("probes.underflowed, probes.overflowed, probes.snr_db",
        "alarm where half of a gradient's values round to 0, or any overflows; `mantissa analyze model` judges the "
        "rest");
  }
  if (!config.precision_adaptive.levels.empty()) {
    add("precision.cause, rollback.cause", "the ladder or a lift acted: find out why before the next one");
  } else if (config.precision_fallback.overflows > 0) {
    add("precision.cause", "a lift acted: find out why before the next one");
  }
  add("mantissa_warnings_total, mantissa_heartbeat_timestamp_seconds", "alarm at a rise, and where it stands still");
  return monitor;
}

// Settings of a configuration, with the reason for each.
struct SettingList {
  const std::map<std::string, std::string> settings;
  Json list = Json::array();

  void add(const char* setting, const std::string& why) {
    list.push_back({{"setting", setting}, {"value", settings.at(setting)}, {"why", why}});
  }
};

Json practices_of(const Config& config, bool has_ladder) {
  SettingList practices{flatten(config)};
  practices.add("optimizer.master", "most updates are below half a step of 16 bits; fp32 masters add them up");
  practices.add("comm.wire_dtype", "rounds each rank's gradient once; sums are fp32 (comm.accumulate)");
  if (config.precision.recipe) {
    practices.add("precision.recipe",
                  "leaves head, attention, norms, embedding and loss out; they reach the loss at once");
  } else {
    practices.add("precision.weights", "norms, softmax, residual stream and loss are fp32 in any case");
  }
  if (config.precision.uses_fp16()) {
    practices.add("scaler.mode", "auto is a dynamic loss scale: without one, gradients below 3e-8 are 0");
    practices.add("scaler.growth_interval", "clean steps until the scale is tried at twice its value");
    practices.add("scaler.floor",
                  "lift raises a layer that overflows at the least scale; fault counts towards the end");
  }
  if (config.data.has_validation()) {
    practices.add("train.eval_interval", "the validation loss is the only sign of slow damage");
  }
  if (config.probe.enabled) {
    const int64_t interval = config.probe.interval, steps = config.train.steps;
    practices.add("probe.interval",
                  fmt::format("{} probed steps of {}, each 1 to 3 steps longer (docs/results/probes.md): {:.3g} to "
                              "{:.3g} % more time at this interval",
                              (steps + interval - 1) / interval, steps, 100.0 / static_cast<double>(interval),
                              300.0 / static_cast<double>(interval)));
  }
  practices.add("checkpoint.interval", has_ladder ? "a small part of the run: a fallback returns to the last good one"
                                                  : "a small part of the run: an interruption loses no more");
  practices.add("checkpoint.keep_last", has_ladder ? "beside these, the one to which a rollback returns stays"
                                                   : "older ones are removed; 0 keeps all");
  practices.add("checkpoint.resume", "the same command continues an interrupted run, to the same bits");
  return practices.list;
}

Json fallbacks_of(const Config& config, const MeasuredPrecision& chosen, const MeasuredPrecision* above,
                  const SignalThresholds& thresholds) {
  SettingList fallbacks{flatten(config)};
  if (above != nullptr) {
    fallbacks.add("precision.adaptive.start",
                  fmt::format("level 1 is {}; a bad signal goes up to level 0, {}", chosen.name, above->name));
    fallbacks.add("precision.adaptive.rollback", "and trains again from before the damage");
    fallbacks.add("precision.adaptive.skipped_share", "one step with a loss or gradient of NaN or Inf goes up");
    if (thresholds.is_known()) {
      fallbacks.add("precision.adaptive.loss_rise", "the alarm above");
      fallbacks.add("precision.adaptive.norm_factor", "the alarm above");
    }
    if (rounds_operands(config.precision, config.model.layers)) {
      fallbacks.add("precision.adaptive.underflow_share", "of the gradients' values, by probes");
    }
  }
  if (config.precision_fallback.overflows > 0) {
    fallbacks.add("precision.fallback.overflows", "overflows of one layer that lift this layer alone");
  }
  fallbacks.add("stop_rules.action", "the answer to spikes of single batches; `rollback` leaves these batches out");
  fallbacks.add("faults.max_consecutive", "faults end the run; `mantissa postmortem` names the first cause");
  return fallbacks.list;
}

}  // namespace

double level_of(std::vector<double> values, int64_t steps, double probability) {
  constexpr double kLowNormal = -1.644854;  // the 5 % quantile of the normal distribution
  std::ranges::sort(values, std::greater());
  const auto count = static_cast<double>(values.size());
  double level = -HUGE_VAL;
  for (const double share : {0.1, 0.05, 0.02}) {
    const auto above = static_cast<int64_t>(share * count);
    const auto k = static_cast<double>(above);
    const double sum = std::accumulate(values.begin(), values.begin() + above, 0.0),
                 u = values[static_cast<size_t>(above)];
    const double scale = 2.0 * (sum - k * u) / chi_squared_quantile(kLowNormal, 2.0 * k);
    const double found = u + scale * std::max(0.0, std::log(static_cast<double>(steps) * k / (count * probability)));
    level = std::max(level, found);
  }
  return level;
}

SignalThresholds thresholds_of(const Json& runs, int64_t steps) {
  // The ladder itself compares. At level 0 a bad signal changes nothing. Here every value above 0 is bad.
  constexpr double kLeast = std::numeric_limits<double>::min();
  AdaptiveOptions options{.stable_steps = 0, .loss_rise = kLeast, .norm_factor = kLeast};
  options.warmup = options.window;
  std::vector<double> rises, factors;  // logarithms of factors
  SignalThresholds found;
  bool is_comparable = true;
  for (const Json& run : runs) {
    if (!run.at("failure").is_null()) continue;
    AdaptivePrecision ladder(options, 2);
    const Json& measured = run.at("steps");
    int64_t applied = 0;
    for (size_t i = 0; i < measured.at("loss").size(); ++i) {
      if (measured.at("result")[i] != "applied") continue;
      ladder.applied(++applied, number_of(measured.at("loss")[i]), number_of(measured.at("grad_norm")[i]));
      double rise = 0.0, factor = kLeast;
      for (const BadSignal& bad : ladder.state().bad) {
        is_comparable = is_comparable && std::isfinite(bad.value);  // NaN, Inf, or a quantile of 0
        (bad.signal == "loss" ? rise : factor) = bad.value;
      }
      ladder.decide(applied);
      if (applied <= options.window) continue;
      rises.push_back(rise);
      factors.push_back(std::log(factor));
    }
  }
  found.compared = std::ssize(rises);
  if (steps <= options.window) {
    found.why_none = fmt::format("the run has {}, and only those after the first {} are compared",
                                 counted(steps, "step"), options.window);
  } else if (!is_comparable) {
    found.why_none = "some losses or norms are not finite, or norms are 0";
  } else if (found.compared < kFewestCompared) {
    found.why_none = fmt::format(
        "only {} measured steps count (those after the first {} of each run), {} are needed: compare with more --steps",
        found.compared, options.window, kFewestCompared);
  }
  if (!found.why_none.empty()) return found;
  const double most_rise = std::ranges::max(rises), most_factor = std::exp(std::ranges::max(factors));
  found.loss_rise = rounded_up_to_two_digits(
      std::max({kLeastRise, most_rise / options.band, level_of(rises, steps, kFalseAlarm / 2.0)}));
  found.norm_factor = rounded_up_to_two_digits(std::max(
      {kLeastFactor, 1.0 + (most_factor - 1.0) / options.band, std::exp(level_of(factors, steps, kFalseAlarm / 2.0))}));
  const auto share_found = [&](double times) {
    const double least = std::log(found.norm_factor / times);
    const auto count = std::ranges::count_if(factors, [&](double factor) { return factor >= least; });
    return static_cast<double>(count) / static_cast<double>(found.compared);
  };
  found.tenfold = share_found(10.0);
  found.hundredfold = share_found(100.0);
  return found;
}

ProductionGuide production_guide(const Config& config, const Measurement& measurement, const MeasuredPrecision& chosen,
                                 const MeasuredPrecision* above) {
  const SignalThresholds thresholds = thresholds_of(chosen.runs, config.train.steps);
  ProductionGuide guide{.config = production_config(config, chosen, above, thresholds)};
  validate_phases(guide.config);
  guide.figures = {{"precision", chosen.name},
                   {"above", above == nullptr ? Json() : Json(above->name)},
                   {"measured_thresholds", thresholds.is_known()},
                   {"monitor", monitor_of(guide.config, measurement, chosen, thresholds)},
                   {"practices", practices_of(guide.config, above != nullptr)},
                   {"fallbacks", fallbacks_of(guide.config, chosen, above, thresholds)}};
  return guide;
}

void add_guide(const Json& figures, ReportText& text) {
  const Json& above = figures.at("above");
  text.line("{} in production, with {}", figures.at("precision"),
            above.is_null() ? std::string("nothing above it: no more precise one was measured to be no worse")
                            : fmt::format("{} above it", above));
  text.line(" Monitor (fields of metrics.jsonl, of metrics.prom, and columns of probes.mtp):");
  for (const Json& one : figures.at("monitor")) text.line("  {}: {}", one.at("fields"), one.at("watch"));
  const auto list = [&](const char* heading, const char* key) {
    text.line(" {}:", heading);
    for (const Json& one : figures.at(key)) {
      text.line("  {}={}: {}", one.at("setting"), one.at("value"), one.at("why"));
    }
  };
  list("Keep to", "practices");
  list("Fall back by", "fallbacks");
}

}  // namespace mantissa
