// Advice for the present device: times kernels, and runs steps of the configuration to compare with the prediction.
#pragma once

#include "tools/lab/advise/advice.h"

namespace mantissa {

struct PresentAdvice {
  Advice advice;
  // The configured step as predicted and as measured, by phase and operation.
  Json comparison;
};

// Times kernels of the configured step and the step itself by turns in `rounds` rounds, so that other work on the
// machine affects both; kernels of other candidates once. One rank, alone. ConfigError as for a training.
PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds);
// A line, and a table of what takes time.
void add_comparison(const Json& comparison, ReportText& text);

}  // namespace mantissa
