// Sentences of the sensitivity report, from its figures.
#pragma once

#include <string>

#include "tools/lab/report/report.h"

namespace mantissa {

// `decisions`: those of the figures that were tried.

// How wide the intervals of Hessian scores are, and how to make them narrower. Empty if there are no scores.
std::string hessian_line(const Json& figures, const Json& decisions);
// How many decisions each band has.
std::string bands_line(const Json& figures, const Json& decisions);

}  // namespace mantissa
