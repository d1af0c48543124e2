// Advice for the device that is here: kernels are timed, and steps of the configuration run beside the prediction.
#pragma once

#include "tools/lab/advise/advice.h"
#include "tools/lab/advise/device/comparison.h"

namespace mantissa {

struct PresentAdvice {
  Advice advice;
  Comparison comparison;  // of the configuration's own precision
};

// Kernels of the configured step and the step itself are timed by turns in `rounds` rounds, so that whatever changes on
// the machine meets both; kernels that only other candidates call, once. One rank, on its own. ConfigError as for a
// training.
PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds);

}  // namespace mantissa
