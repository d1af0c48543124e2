#include "tools/train/speed.h"

#include <fmt/format.h>

namespace mantissa {

std::string SpeedContext::to_text(double step_seconds) const {
  std::string text = fmt::format("{:.0f} tok/s | MFU {:.1f}% of GEMM peak", tokens_per_second(step_seconds),
                                 100.0 * mfu_of_gemm_peak(step_seconds));
  if (datasheet_flops > 0.0) text += fmt::format(", {:.1f}% of data sheet", 100.0 * mfu_of_datasheet(step_seconds));
  return text;
}

}  // namespace mantissa
