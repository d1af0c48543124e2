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

// Names of the uniform ones: "fp32", "tf32", "bf16", "fp16", and the recipes "delayed", "current", "block", "mxfp8",
// "nvfp4" over bf16.
std::vector<std::string> candidate_names();

// The configuration with each of these precisions in place of its own, whose settings they replace all, and first, as
// "as configured", the configuration itself unless it is one of them. Settings of the optimizer and of what travels
// that mean nothing beside a precision take their defaults. `names`: some of candidate_names(), empty for all;
// ConfigError for others.
std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names = {});

}  // namespace mantissa
