// What `mantissa compare` found, and how it is written.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/compare/precision_comparison.h"

namespace mantissa {

// The verdict, then a table; ends with a line feed.
std::string to_text(const PrecisionComparison& comparison);

// Every figure, unrounded, with every step of every run, in the form that the page reads (tools/lab/compare/page). Numbers
// that are not there, or not finite, are null.
nlohmann::json to_json(const PrecisionComparison& comparison);

}  // namespace mantissa
