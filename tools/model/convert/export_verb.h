// `mantissa export`: the weights of a run in the files of other programs.
#pragma once

#include <string>

namespace mantissa {

struct ExportRequest {
  std::string run;                     // run folder, checkpoint folder, or a model of another program
  std::string out;                     // folder to make; for llm.c a file
  std::string format = "huggingface";  // "llmc"; "peft": only the adapters
  std::string dtype = "auto";          // "fp32", "bf16", "fp16"; auto: that of most working weights
  std::string family{};                // model_type; empty: the imported model's, or the first that fits
  double max_shard_gb = 50.0;          // of a file of weights, in 10^9 bytes
};

// Returns the exit code. The output is there whole or not at all.
int export_verb(const ExportRequest& request);

}  // namespace mantissa
