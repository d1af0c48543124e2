// `mantissa generate`: text from a run, or from a model of another program.
#pragma once

#include <string>
#include <vector>

#include "tools/model/generate/generator.h"
#include "tools/model/generate/prompts.h"

namespace mantissa {

struct GenerateRequest {
  std::string run;                     // as for train.init_from
  std::vector<std::string> overrides;  // settings such as precision.compute=fp32
  PromptChoice prompts;
  SamplingOptions sampling;
  std::vector<std::string> stops;  // strings that end a text
  int64_t batch = 8;               // prompts of a file that are continued at a time
};

// Continues texts up to a token that ends them, or a stop string. Prints the prompt, but for a conversation, and what
// follows it, as it is generated; for a file of prompts a line of JSON each. Returns the exit code.
int generate_verb(const GenerateRequest& request);

}  // namespace mantissa
