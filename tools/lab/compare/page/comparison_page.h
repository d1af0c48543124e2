// The page of `mantissa compare`: one HTML file that shows what was found, offline.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

// A complete document (see page_document()) of to_json(PrecisionComparison), with "gradients" of
// to_json(GradientUnderflow) and "device_formats" of to_json(FormatsReport). Whatever is absent is said to be.
std::string comparison_page(const nlohmann::json& comparison);

}  // namespace mantissa
