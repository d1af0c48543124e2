// Speed: what turns the time of a step into rates, the same for the whole run.
//
// MFU, model FLOP utilisation (Chowdhery et al. 2022, "PaLM", appendix B): FLOP that the model needs, whatever else is
// computed (recomputation, padding, the optimizer), over what the devices could have done in that time. What they could
// have done is either what their matrix products were measured to reach at the start of the run, or what the data sheet
// promises. The first says what is lost around the products, and is fair to a device that is held below its data sheet
// by power or by others that use it; the second is the one to compare with published numbers.
#pragma once

#include <cstdint>
#include <string>

namespace mantissa {

struct SpeedContext {
  int64_t tokens_per_step = 0;   // positions of the global batch
  double flops_per_step = 0.0;   // see training_flops_per_token()
  double gemm_peak_flops = 0.0;  // FLOP/s of products in the compute dtype, measured, summed over ranks; 0: not known
  double datasheet_flops = 0.0;  // FLOP/s by data sheet, summed over ranks; 0: not known

  double tokens_per_second(double step_seconds) const { return static_cast<double>(tokens_per_step) / step_seconds; }
  // In [0, 1], and a little above 1 where the peak was measured while something else ran. 0 if the peak is not known.
  double mfu_of_gemm_peak(double step_seconds) const { return mfu(gemm_peak_flops, step_seconds); }
  double mfu_of_datasheet(double step_seconds) const { return mfu(datasheet_flops, step_seconds); }
  double mfu(double peak_flops, double step_seconds) const {
    return peak_flops > 0.0 ? flops_per_step / step_seconds / peak_flops : 0.0;
  }
  // "90000 tok/s | MFU 45.1% of GEMM peak, 33.0% of data sheet"
  std::string to_text(double step_seconds) const;
};

}  // namespace mantissa
