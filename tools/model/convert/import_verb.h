// `mantissa import`: the model of another program as a run folder.
#pragma once

#include <string>

namespace mantissa {

struct ImportRequest {
  std::string model;  // the folder of a Hugging Face model, or a GPT-2 of llm.c
  std::string out;    // run folder to make
};

// Writes the run folder: settings, a checkpoint of step 0 with the weights bit for bit, and the files of a tokenizer.
// Returns the exit code. The folder is there whole or not at all.
int import_verb(const ImportRequest& request);

}  // namespace mantissa
