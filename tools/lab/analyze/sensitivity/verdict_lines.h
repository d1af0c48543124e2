// Sentences of the sensitivity report, from its figures.
#pragma once

#include <string>

#include "tools/run/report/report.h"

namespace mantissa {

// The tried decisions, the most sensitive first; a non-finite loss comes before all others.
Json tried_by_loss(const Json& figures);
// The sentences of the verdict.
Json sensitivity_verdict(const Json& figures);

// How wide the intervals of Hessian scores are, and how to make them narrower. Empty if there are no scores.
// `decisions`: tried_by_loss() of the figures.
std::string hessian_line(const Json& figures, const Json& decisions);

}  // namespace mantissa
