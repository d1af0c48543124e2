// Candidates: the precisions that a model could be trained in.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

struct Candidate {
  std::string name;  // "bf16", "mxfp8"
  Config config;
  bool is_configured = false;  // what the configuration asks for already
};

// The configuration in this precision from the first step to the last: it replaces all settings of precision but the
// fallback. A precision with fp16 also takes fp32 masters, without which it cannot train.
Config in_precision(const Config& config, const PrecisionConfig& precision);

// Names of the uniform ones: "fp32", "tf32", "bf16", "fp16", and the recipes "delayed", "current", "block", "mxfp8",
// "nvfp4" over bf16.
std::vector<std::string> candidate_names();

// in_precision() for each of these, and first, as "as configured", the configuration itself unless it is one of them.
// `names`: some of candidate_names(), or "fp8" for "delayed" and "fp4" for "nvfp4"; empty for all; ConfigError for
// others.
std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names = {});

// Only those that are asked for, in that order and by the names that they were asked for by: as above, "configured" for
// the configuration itself, or NAME=FILE for the section `precision` of a YAML file, of which nothing else is taken.
// Uniform ones have no fallback (precision.fallback): it is they that are looked at. ConfigError, which names `option`,
// for others and for one that is there twice. Whether the model bears a precision is not looked at.
std::vector<Candidate> chosen_candidates(const Config& config, const std::vector<std::string>& names,
                                         const char* option);

}  // namespace mantissa
