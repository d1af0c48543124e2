// Candidates: the precisions in which a model could be trained.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// The present configuration, where no other name stands for its precision.
inline constexpr const char* kAsConfigured = "as configured";
// In requests and their results: the configuration of the request, perhaps not the present one.
inline constexpr const char* kConfigured = "configured";

struct Candidate {
  std::string name;  // "bf16", "mxfp8"
  Config config;
  bool is_configured = false;  // the configuration already has it
};

// The configuration in this precision from the first step to the last, which replaces all its precision settings except
// the fallback. A precision with fp16 also takes fp32 masters, which it cannot train without. fp64 also takes unrounded
// optimizer state, and neither fallback nor probes.
Config in_precision(const Config& config, const PrecisionConfig& precision);

// Whether the configuration's precision is one of uniform_precisions().
bool is_uniform(const Config& config);

// As `compare` takes it: its precision_name(), or "configured" if the name does not cover all of it.
std::string requested_name(const Config& config);

// The shipped patterns over the configuration's own uniform precision, or bf16 where that has nothing for patterns to
// change: "mxfp8:attention_high". "all_low" is one of them only for a recipe.
std::vector<std::string> pattern_names(const Config& config);

// The configuration in_precision() of each name, preceded by the configuration itself as "as configured", unless it is
// among them. `names`: as parse_precision() reads them. Empty: uniform_precisions() and pattern_names(), but for fp64,
// bf16x6 and bf16x3, which are slow without hardware for them. ConfigError for others.
std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names = {});

// ConfigError for a name that is there twice. Two names of a precision count as one (fp8 is delayed).
void require_once(const char* option, const std::vector<std::string>& names);

// The candidates of --precisions, in this order and under these names: as above, "configured" for the configuration
// itself, or NAME=FILE for the precision of a YAML file: its section `precision`, and, where they are in it, the
// formats of optimizer state and communication, which `advise` plans as well. Uniform ones have no precision.fallback,
// since they themselves are compared. ConfigError for other names and for duplicates. Does not check whether the model
// accepts a precision.
std::vector<Candidate> chosen_candidates(const Config& config, const std::vector<std::string>& names);

}  // namespace mantissa
