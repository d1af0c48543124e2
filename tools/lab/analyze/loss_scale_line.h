// The verdict's sentence about a static loss scale for fp16.
#pragma once

#include <string>

#include "tools/lab/analyze/model_analysis.h"

namespace mantissa {

// The smallest of the scales that are recommended at the checkpoints, since a run has one; what it costs, whether the
// configuration allows it, and how many steps it rests on where most were skipped. Where none is recommended, why;
// empty where no gradients were seen.
std::string loss_scale_line(const ModelAnalysis& analysis);

}  // namespace mantissa
