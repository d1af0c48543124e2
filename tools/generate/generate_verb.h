// `mantissa generate`: text from a run, or from a model of another program.
#pragma once

#include <string>
#include <vector>

#include "tools/train/generator.h"

namespace mantissa {

struct GenerateRequest {
  std::string run;                     // as for train.init_from
  std::vector<std::string> overrides;  // settings such as precision.compute=fp32
  std::string prompt;                  // text; for a model of token files without a tokenizer, numbers between spaces
  SamplingOptions sampling;
};

// Prints the prompt and its continuation to standard output, up to the token that ends a text. Returns the exit code.
int generate_verb(const GenerateRequest& request);

}  // namespace mantissa
