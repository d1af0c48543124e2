#include "tools/run/metrics/step_report.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "core/base/host_memory.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

// "gradient blocks.0.mlp.up.weight[7] is Inf on rank 1".
std::string describe(const Offender& offender, const ParameterSet& parameters) {
  const char* kind = offender.is_nan ? "NaN" : "Inf";
  const Parameter& parameter = parameters[offender.parameter];
  if (offender.rank < 0) {
    return fmt::format("gradient {}[{}] is {} after summing over ranks, each rank's own was finite", parameter.name,
                       offender.element, kind);
  }
  return fmt::format("gradient {}[{}] is {} on rank {}", parameter.name, offender.element, kind, offender.rank);
}

const double kLogWidth = std::log(1.01);
constexpr int32_t kSmallestBin = -100000;  // below that of any positive double

std::string quantiles(const LogHistogram& values, const char* unit, double scale = 1.0) {
  const auto at = [&](double q) { return scale * values.quantile(q); };
  return fmt::format("min {:.4g}{u}, median {:.4g}{u}, 90 % {:.4g}{u}, 99 % {:.4g}{u}, max {:.4g}{u}", at(0.0), at(0.5),
                     at(0.9), at(0.99), at(1.0), fmt::arg("u", unit));
}

template <typename T>
void remember(std::deque<T>& newest, T value) {
  newest.push_back(std::move(value));
  if (newest.size() > RunStatistics::kRemembered) newest.pop_front();
}

}  // namespace

std::string state_fault_reason(const std::string& fault) {
  return fmt::format("masters or moments are not finite, which no later step repairs: {}",
                     fault.empty() ? "a magnitude beyond the range of bf16" : fault);
}

std::string StepReport::skip_reason(const ParameterSet& parameters) const {
  if (applied) return "";
  if (!verdict.state_finite) return state_fault_reason(culprit.value_or(""));
  if (spike) return *spike;
  if (lacks_targets()) return "no token of the global batch is a target: all are masked or padding";
  if (!verdict.loss_finite) {
    return fmt::format("the loss is not finite: {}",
                       culprit.value_or("every op's output was finite when the batch was run again; the loss itself "
                                        "overflowed in its sum"));
  }
  if (!offender) {
    return fmt::format("the gradient is not finite after unscaling: the loss scale {:g} is too small", scale);
  }
  const std::string where = describe(*offender, parameters);
  const std::string scaled = scale == 1.0f ? std::string() : fmt::format(" with the loss scale {:g}", scale);
  if (culprit) return fmt::format("the gradient is not finite{}: {}; {}", scaled, *culprit, where);
  if (!hunted) return where;
  return fmt::format("{}{}; every op of the backward pass made finite gradients when the batch was run again", where,
                     scaled);
}

std::string StepReport::advice(const ScalerConfig& scaler) const {
  constexpr const char* kPrecision = "a lower optimizer.lr, or fp32 for the layer named (precision.rules)";
  if (!verdict.state_finite) return kStateFaultAdvice;
  if (lacks_targets()) return "look at the loss_mask of the data, or give a larger train.global_batch";
  if (spike) return fmt::format("look at the data of this step, or try {}", kPrecision);
  if (!verdict.loss_finite || scale == 1.0f) return fmt::format("try {}", kPrecision);
  if (verdict.gradients_finite) {
    return fmt::format("the loss scale {:g} is too small: raise {}", scale,
                       scaler.mode == ScalerMode::kDynamic ? "scaler.min_scale" : "scaler.init_scale");
  }
  if (event == ScalerEvent::kBackedOff || event == ScalerEvent::kHysteresisConsumed) {
    return fmt::format("if the loss scale is still on its way down, lower scaler.init_scale; else try {}", kPrecision);
  }
  if (scaler.mode == ScalerMode::kDynamic) {
    return fmt::format("the loss scale cannot go below {:g}: lower scaler.min_scale; if that does not help, try {}",
                       scale, kPrecision);
  }
  return fmt::format(
      "the loss scale {:g} may be too large: lower scaler.init_scale, or give scaler.mode=dynamic; if that does not "
      "help, try {}",
      scale, kPrecision);
}

std::string SpeedContext::to_text(double step_seconds) const {
  std::string shares;
  const auto add = [&](double peak_flops, const char* name) {
    if (peak_flops <= 0.0) return;
    shares +=
        fmt::format("{} {:.1f}% of {}", shares.empty() ? " | MFU" : ",", 100.0 * mfu(peak_flops, step_seconds), name);
  };
  add(gemm_peak_flops, "the measured peak");
  add(datasheet_flops, "data sheet");
  return fmt::format("{:.0f} tok/s{}", tokens_per_second(step_seconds), shares);
}

bool PeakWatch::add(double step_seconds, SpeedContext& speed) {
  seconds_.push_back(step_seconds);
  if (seconds_.size() > kSteps) seconds_.pop_front();
  if (seconds_.size() < kSteps || speed.gemm_peak_flops == 0.0) return false;
  const double rate = speed.flops_per_step / quantile({seconds_.begin(), seconds_.end()}, 0.5);
  constexpr double kWorthANote = 1.01;
  if (rate <= kWorthANote * speed.gemm_peak_flops) return false;
  speed.gemm_peak_flops = rate;
  return true;
}

void LogHistogram::add(double value) {
  const bool countable = std::isfinite(value) && value > 0.0;
  ++bins[countable ? static_cast<int32_t>(std::floor(std::log(value) / kLogWidth)) : kSmallestBin];
  min = count == 0 ? value : std::min(min, value);
  max = count == 0 ? value : std::max(max, value);
  ++count;
}

double LogHistogram::quantile(double q) const {
  if (count == 0) return std::nan("");
  const auto rank = static_cast<int64_t>(std::llround(q * static_cast<double>(count - 1)));
  if (rank == 0) return min;
  if (rank == count - 1) return max;
  int64_t seen = 0;
  for (const auto& [bin, values] : bins) {
    seen += values;
    if (seen > rank) return std::clamp(std::exp((bin + 0.5) * kLogWidth), min, max);
  }
  return max;
}

void to_json(nlohmann::json& json, const LogHistogram& histogram) {
  json = {{"bins", histogram.bins}, {"count", histogram.count}, {"min", histogram.min}, {"max", histogram.max}};
}

void from_json(const nlohmann::json& json, LogHistogram& histogram) {
  histogram = {.bins = json.at("bins"), .count = json.at("count"), .min = json.at("min"), .max = json.at("max")};
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

void RunStatistics::add(const StepReport& report, const std::string& skip_reason) {
  if (newest_scales.empty()) remember(newest_scales, {report.step + 1, report.scale});
  if (report.next_scale != report.scale) {
    remember(newest_scales, {report.step + 2, report.next_scale});
    ++scale_changes;
  }
  if (report.applied) {
    ++applied;
    grad_norms.add(report.grad_norm);
  } else {
    ++skipped;
    remember(newest_skips, fmt::format("step {}: {}", report.step + 1, skip_reason));
  }
  step_ms.add(1e3 * report.seconds);
}

std::string RunStatistics::to_text(size_t peak_memory_bytes, const SpeedContext& speed) const {
  std::string text = fmt::format("\n  steps        {} done, {} skipped", applied, skipped);
  const int64_t older = skipped - static_cast<int64_t>(newest_skips.size());
  if (older > 0) text += fmt::format(", the last {} of them:", newest_skips.size());
  for (const std::string& skip : newest_skips) text += "\n    " + skip;
  const bool has_scale = scale_changes > 0 || (!newest_scales.empty() && newest_scales.back().second != 1.0f);
  if (has_scale) text += fmt::format("\n  loss scale   {}:", counted(scale_changes, "change"));
  if (scale_changes >= static_cast<int64_t>(kRemembered)) text += " ...,";
  for (size_t index = 0; has_scale && index < newest_scales.size(); ++index) {
    text += fmt::format(" {:g} from step {}{}", newest_scales[index].second, newest_scales[index].first,
                        index + 1 < newest_scales.size() ? "," : "");
  }
  if (grad_norms.count > 0) text += "\n  grad norm    " + quantiles(grad_norms, "");
  if (step_ms.count > 0) {
    const bool is_long = step_ms.quantile(1.0) >= 1e4;
    text += "\n  step time    " + (is_long ? quantiles(step_ms, " s", 1e-3) : quantiles(step_ms, " ms"));
    text += "\n  speed        " + speed.to_text(1e-3 * step_ms.quantile(0.5)) + " (the median step)";
  }
  return text + fmt::format("\n  peak memory  {:.1f} MiB (all that rank 0 held)",
                            1024.0 * static_cast<double>(peak_memory_bytes) / kGib);
}

void to_json(nlohmann::json& json, const RunStatistics& statistics) {
  json = {{"applied", statistics.applied},
          {"skipped", statistics.skipped},
          {"scale_changes", statistics.scale_changes},
          {"newest_skips", statistics.newest_skips},
          {"newest_scales", statistics.newest_scales},
          {"grad_norms", statistics.grad_norms}};
}

void from_json(const nlohmann::json& json, RunStatistics& statistics) {
  statistics = {.applied = json.at("applied"),
                .skipped = json.at("skipped"),
                .scale_changes = json.at("scale_changes"),
                .newest_skips = json.at("newest_skips"),
                .newest_scales = json.at("newest_scales"),
                .grad_norms = json.at("grad_norms")};
}

}  // namespace mantissa
