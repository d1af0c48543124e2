// Speed of a run: rates of a step, and the peaks they are compared with.
//
// MFU, model FLOP utilisation (Chowdhery et al. 2022, "PaLM", appendix B): the model's FLOP over what the devices could
// have done in that time. FLOP of recomputation, padding and the optimizer do not count. "Could have done" is either
// the GEMM peak measured at the start of the run, or the data sheet. The first is fair to a device that power or other
// users hold below its data sheet; the second compares with published numbers.
#pragma once

#include <cstdint>
#include <string>

#include "core/backend/registry.h"
#include "tools/train/model_runtime.h"

namespace mantissa {

class Communicator;

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

// Measures the GEMM peak of all ranks at once, in 0.2 to 0.5 s, and looks up the data sheets of their devices. Ranks
// that share a GPU have no data sheet: each would be promised all of it. Collective.
SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator);

// FLOP/s that the data sheet of the backend's device `index` promises for products in this precision; 0: nothing.
double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision);

}  // namespace mantissa
