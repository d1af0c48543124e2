// Verbs of the laboratory: analyze formats, probes, model, sensitivity, evidence; advise; compare.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_lab_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
