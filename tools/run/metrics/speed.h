// Speed of a run: rates of a step, and the peaks they are compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>


namespace mantissa {

// MFU, model FLOP utilisation (Chowdhery et al. 2022, "PaLM", appendix B): the model's FLOP over what the devices could
// have done in that time. FLOP of recomputation, padding and the optimizer do not count. "Could have done" is either
// the peak measured at the start of the run, or the data sheet. The first is fair to a device that power or other users
// hold below its data sheet; the second compares with published numbers. The measured peak is that of matrix products;
// on a CPU at least that of multiply-adds on registers, which no product exceeds. If the machine was busy then, steps
// may exceed it, and PeakWatch raises it.
struct SpeedContext {
  int64_t tokens_per_step = 0;   // positions of the global batch
  double flops_per_step = 0.0;   // see training_flops_per_token()
  double gemm_peak_flops = 0.0;  // FLOP/s in the compute dtype, measured, summed over ranks; 0: not known
  double datasheet_flops = 0.0;  // FLOP/s by data sheet, summed over ranks; 0: not known

  double tokens_per_second(double step_seconds) const { return static_cast<double>(tokens_per_step) / step_seconds; }
  // In [0, 1]; 0 if the peak is not known. A single step may seem faster than the peak, as the host sees it.
  double mfu_of_gemm_peak(double step_seconds) const { return mfu(gemm_peak_flops, step_seconds); }
  double mfu_of_datasheet(double step_seconds) const { return mfu(datasheet_flops, step_seconds); }
  double mfu(double peak_flops, double step_seconds) const {
    return peak_flops > 0.0 ? std::min(1.0, flops_per_step / step_seconds / peak_flops) : 0.0;
  }
  // "90000 tok/s | MFU 45.1% of the measured peak, 33.0% of data sheet"
  std::string to_text(double step_seconds) const;
};

// Raises a measured peak that steps exceed to the rate of the median of five steps.
class PeakWatch {
 public:
  // Whether this step raises speed.gemm_peak_flops.
  bool add(double step_seconds, SpeedContext& speed);

 private:
  static constexpr size_t kSteps = 5;
  std::deque<double> seconds_;
};

}  // namespace mantissa
