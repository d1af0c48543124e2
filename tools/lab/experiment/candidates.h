// Candidates: the precisions in which a model could be trained.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

inline constexpr const char* kAsConfigured = "as configured";  // a configuration that is none of the others

struct Candidate {
  std::string name;  // "bf16", "mxfp8"
  Config config;
  bool is_configured = false;  // the configuration already has it
};

// The default recipe of a width: "delayed" for "fp8", "nvfp4" for "fp4"; other names as they are.
std::string without_alias(const std::string& name);

// The configuration in this precision from the first step to the last, which replaces all its precision settings except
// the fallback. A precision with fp16 also takes fp32 masters, which it cannot train without. fp64 also takes unrounded
// optimizer state, and neither fallback nor probes.
Config in_precision(const Config& config, const PrecisionConfig& precision);

// Uniform precisions: "fp64", "fp32", "tf32", "bf16", "fp16", and the recipes "delayed", "current", "block", "mxfp8",
// "nvfp4" over bf16.
std::vector<std::string> candidate_names();

// Whether the configuration's precision is one of these.
bool is_uniform(const Config& config);

// The shipped patterns over the configuration's own uniform precision, or bf16 where that has nothing for patterns to
// change: "mxfp8:attention_high". "all_low" is one of them only for a recipe.
std::vector<std::string> pattern_names(const Config& config);

// The configuration in_precision() of each name, preceded by the configuration itself as "as configured", unless it is
// one of them. `names`: some of candidate_names(), or "fp8" for "delayed" and "fp4" for "nvfp4", each also with a
// pattern; empty for all of candidate_names() but fp64, which is slow, and pattern_names(). ConfigError for others.
std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names = {});

// The requested candidates, in this order and under these names: as above, "configured" for the configuration itself,
// or NAME=FILE for the `precision` section of a YAML file. Uniform ones have no precision.fallback, since they
// themselves are compared. ConfigError, which names `option`, for other names and for duplicates. Does not check
// whether the model accepts a precision.
std::vector<Candidate> chosen_candidates(const Config& config, const std::vector<std::string>& names,
                                         const char* option);

}  // namespace mantissa
