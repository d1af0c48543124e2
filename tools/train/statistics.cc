#include "tools/train/statistics.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/backend/device_rates.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/cpu/fma_peak.h"

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

}  // namespace

std::string state_fault_reason(const std::string& fault) {
  return fmt::format("masters or moments are not finite, which no later step repairs: {}",
                     fault.empty() ? "a magnitude beyond the range of bf16" : fault);
}

std::string StepReport::skip_reason(const ParameterSet& parameters) const {
  if (applied) return "";
  if (!verdict.state_finite) return state_fault_reason(culprit.value_or(""));
  if (spike) return *spike;
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

namespace {

struct RankPeaks {
  double gemm = 0.0, datasheet = 0.0;  // FLOP/s; 0: not known
};

// A peak that cannot be measured, for want of memory, is not known: no reason to end a training that fits.
double measured_flops(DType compute, const BackendEntry& backend, ModelRuntime& runtime) {
  try {
    const double products = measure_gemm_flops(*runtime.backend, *runtime.stream, compute);
    if (!backend.computes_on_host) return products;
    return std::max(products, cpu::measure_fma_peak(compute, threads()).flops);
  } catch (const Error& error) {
    log_warn("the peak was not measured: {}", error.what());
    return 0.0;
  }
}

}  // namespace

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

double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision) {
  const auto promised = [&](DType dtype, Fp32Math math) {
    return backend.datasheet_flops(index, dtype, math).value_or(0.0);
  };
  const Fp32Products products = precision.fp32_products;
  if (precision.compute == DType::kF32 && bf16_products(products) > 0) {
    return promised(DType::kBF16, Fp32Math::kFull) / bf16_products(products);
  }
  return promised(precision.compute, products == Fp32Products::kTf32 ? Fp32Math::kTf32 : Fp32Math::kFull);
}

SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator) {
  const int64_t tokens = config.train.global_batch * config.model.context;
  SpeedContext speed{.tokens_per_step = tokens,
                     .flops_per_step = training_flops_per_token(config.model) * static_cast<double>(tokens)};
  const BackendEntry& backend = find_backend(device.backend);
  communicator.barrier();  // so that ranks of one device measure what they leave each other
  const RankPeaks mine{
      .gemm = config.train.measure_peak ? measured_flops(config.precision.compute, backend, runtime) : 0.0,
      .datasheet = promised_flops(backend, device.index, config.precision)};
  bool all_measured = true, all_known = true;
  for (const RankPeaks& peaks : all_gather_records(communicator, mine)) {
    speed.gemm_peak_flops += peaks.gemm;
    speed.datasheet_flops += peaks.datasheet;
    all_measured &= peaks.gemm > 0.0;
    all_known &= peaks.datasheet > 0.0;
  }
  const auto claims = all_gather_claims(communicator, claim_of(device));
  if (!all_measured) speed.gemm_peak_flops = 0.0;
  if (!all_known || ranks_that_share(claims)) speed.datasheet_flops = 0.0;
  return speed;
}

namespace {

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

void LogHistogram::add(double value) {
  const bool countable = std::isfinite(value) && value > 0.0;
  ++bins_[countable ? static_cast<int32_t>(std::floor(std::log(value) / kLogWidth)) : kSmallestBin];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  ++count_;
}

double LogHistogram::quantile(double q) const {
  if (count_ == 0) return std::nan("");
  const auto rank = static_cast<int64_t>(std::llround(q * static_cast<double>(count_ - 1)));
  if (rank == 0) return min_;
  if (rank == count_ - 1) return max_;
  int64_t seen = 0;
  for (const auto& [bin, count] : bins_) {
    seen += count;
    if (seen > rank) return std::clamp(std::exp((bin + 0.5) * kLogWidth), min_, max_);
  }
  return max_;
}

void to_json(nlohmann::json& json, const LogHistogram& histogram) {
  json = {{"bins", histogram.bins_}, {"count", histogram.count_}, {"min", histogram.min_}, {"max", histogram.max_}};
}

void from_json(const nlohmann::json& json, LogHistogram& histogram) {
  json.at("bins").get_to(histogram.bins_);
  json.at("count").get_to(histogram.count_);
  json.at("min").get_to(histogram.min_);
  json.at("max").get_to(histogram.max_);
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
  if (newest_scales_.empty()) remember(newest_scales_, {report.step + 1, report.scale});
  if (report.next_scale != report.scale) {
    remember(newest_scales_, {report.step + 2, report.next_scale});
    ++scale_changes_;
  }
  if (report.applied) {
    ++applied_;
    grad_norms_.add(report.grad_norm);
  } else {
    ++skipped_;
    remember(newest_skips_, fmt::format("step {}: {}", report.step + 1, skip_reason));
  }
  step_ms_.add(1e3 * report.seconds);
}

std::string RunStatistics::to_text(size_t peak_memory_bytes, const SpeedContext& speed) const {
  std::string text = fmt::format("\n  steps        {} done, {} skipped", applied_, skipped_);
  const int64_t older = skipped_ - static_cast<int64_t>(newest_skips_.size());
  if (older > 0) text += fmt::format(", the last {} of them:", newest_skips_.size());
  for (const std::string& skip : newest_skips_) text += "\n    " + skip;
  const bool has_scale = scale_changes_ > 0 || (!newest_scales_.empty() && newest_scales_.back().second != 1.0f);
  if (has_scale) text += fmt::format("\n  loss scale   {}:", counted(scale_changes_, "change"));
  if (scale_changes_ >= static_cast<int64_t>(kRemembered)) text += " ...,";
  for (size_t index = 0; has_scale && index < newest_scales_.size(); ++index) {
    text += fmt::format(" {:g} from step {}{}", newest_scales_[index].second, newest_scales_[index].first,
                        index + 1 < newest_scales_.size() ? "," : "");
  }
  if (grad_norms_.count() > 0) text += "\n  grad norm    " + quantiles(grad_norms_, "");
  if (step_ms_.count() > 0) {
    const bool is_long = step_ms_.quantile(1.0) >= 1e4;
    text += "\n  step time    " + (is_long ? quantiles(step_ms_, " s", 1e-3) : quantiles(step_ms_, " ms"));
    text += "\n  speed        " + speed.to_text(1e-3 * step_ms_.quantile(0.5)) + " (the median step)";
  }
  return text + fmt::format("\n  peak memory  {:.1f} MiB (all that rank 0 held)",
                            1024.0 * static_cast<double>(peak_memory_bytes) / kGib);
}

void to_json(nlohmann::json& json, const RunStatistics& statistics) {
  json = {{"applied", statistics.applied_},
          {"skipped", statistics.skipped_},
          {"scale_changes", statistics.scale_changes_},
          {"newest_skips", statistics.newest_skips_},
          {"newest_scales", statistics.newest_scales_},
          {"grad_norms", statistics.grad_norms_}};
}

void from_json(const nlohmann::json& json, RunStatistics& statistics) {
  json.at("applied").get_to(statistics.applied_);
  json.at("skipped").get_to(statistics.skipped_);
  json.at("scale_changes").get_to(statistics.scale_changes_);
  json.at("newest_skips").get_to(statistics.newest_skips_);
  json.at("newest_scales").get_to(statistics.newest_scales_);
  json.at("grad_norms").get_to(statistics.grad_norms_);
}

}  // namespace mantissa
