#include "tools/train/speed.h"

#include <fmt/core.h>

namespace mantissa {

std::string SpeedContext::to_text(double step_seconds) const {
  std::string shares;
  const auto add = [&](double peak_flops, const char* name) {
    if (peak_flops <= 0.0) return;
    shares +=
        fmt::format("{} {:.1f}% of {}", shares.empty() ? " | MFU" : ",", 100.0 * mfu(peak_flops, step_seconds), name);
  };
  add(gemm_peak_flops, "GEMM peak");
  add(datasheet_flops, "data sheet");
  return fmt::format("{:.0f} tok/s{}", tokens_per_second(step_seconds), shares);
}

}  // namespace mantissa
