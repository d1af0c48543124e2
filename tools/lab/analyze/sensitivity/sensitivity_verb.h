// `mantissa analyze sensitivity`: the effect on a model's training of lowering a single product of a layer.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/analyze/model_verb.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// Estimates are {mean, half_width}; unknown or non-finite values are null in a file. verdict: sentences.
// lowered_decisions: by format, how many decisions lowered_throughout() has. is_lowered: whether a decision is one.
nlohmann::json to_json(const SensitivityAnalysis& analysis);
std::string sensitivity_text(const nlohmann::json& figures);
extern const std::string_view kSensitivityPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report to standard output and writes the
// files. Returns the exit code.
int sensitivity_verb(const SensitivityRequest& request, const ModelOutputs& outputs);

}  // namespace mantissa
