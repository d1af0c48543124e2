// `mantissa generate`: text from a finished or running run.
#pragma once

#include <string>

#include "tools/train/generator.h"

namespace mantissa {

struct GenerateRequest {
  std::string run;     // a run folder (its newest valid checkpoint), or one checkpoint folder
  std::string prompt;  // text for byte-level models; token numbers separated by spaces for token files
  SamplingOptions sampling;
};

// Prints the prompt and its continuation to standard output. Returns the exit code.
int generate_verb(const GenerateRequest& request);

}  // namespace mantissa
