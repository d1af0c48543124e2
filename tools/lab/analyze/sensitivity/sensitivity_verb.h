// `mantissa analyze sensitivity`: what lowering one product of one layer does to a model's training.
#pragma once

#include <string>

#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"
#include "tools/lab/report/report.h"

namespace mantissa {

// Estimates are {mean, half_width}; what is not known or not finite is null in a file.
Json to_json(const SensitivityAnalysis& analysis);
ReportText sensitivity_text(const Json& figures);

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report to standard output and writes the
// file, unless `json` is empty. Returns the exit code.
int sensitivity_verb(const SensitivityRequest& request, const std::string& json);

}  // namespace mantissa
