// The report of a model's analysis: for people as text, for programs and the page as JSON.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/analyze/model_verdict.h"

namespace mantissa {

// The verdict, then a table by layer for each point of the training.
std::string to_text(const ModelAnalysis& analysis);

// What the page shows (tools/lab/analyze/page/model_page.h); null where something is not known.
nlohmann::json to_json(const ModelAnalysis& analysis);

}  // namespace mantissa
