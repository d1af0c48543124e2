// Verbs for models: generate, evaluate, score, import, export.
#pragma once

#include <vector>

#include "tools/model/convert/verbs.h"
#include "tools/model/evaluate/verbs.h"
#include "tools/model/generate/generate_verb.h"

namespace mantissa {

inline void add_model_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  for (const auto add : {add_generate, add_evaluate, add_score, add_import, add_export}) add(app, verbs);
}

}  // namespace mantissa
