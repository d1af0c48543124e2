#include "tools/run/metrics/speed.h"

#include <fmt/core.h>

#include "tools/run/metrics/run_statistics.h"

namespace mantissa {

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

}  // namespace mantissa
