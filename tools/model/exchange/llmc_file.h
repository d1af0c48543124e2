// Models of llm.c: a header, then all weights in fp32 (version 3) or bf16 (version 5). Sources: write_model() in
// llm.c's train_gpt2.py and train_llama3.py; llama3_write_to_checkpoint() in train_llama3.cu of its branch "llama3".
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/io/files.h"
#include "models/model_config.h"
#include "tools/model/exchange/llmc_layout.h"
#include "tools/model/exchange/stored_tensors.h"

namespace mantissa {

struct LlmcModel {
  ModelConfig model;
  StoredTensors tensors;
  std::map<std::string, ParameterParts> parts;  // of every parameter
};

// Whether the file begins as a model of llm.c.
bool is_llmc_model(const std::string& path);

// CheckpointError for a header that describes no GPT-2 and no Llama, or none of the file's size. A Llama's MLP is as
// wide as the file's size says: one of the headers rounds the factor that it is made with.
ModelConfig read_llmc_config(const std::string& path);

// Rows that pad the vocabulary are left out. CheckpointError as above, and for a Llama with biases that are not zero.
LlmcModel open_llmc_model(const std::string& path);

struct LlmcTarget {
  ModelConfig model;
  LlmcLayout layout;
  DType dtype;  // fp32 or bf16
};

// Writes a model. `values` gives a parameter's bytes in the dtype. ConfigError for a model that llm.c has not.
void write_llmc_model(const LlmcTarget& target, const std::function<std::vector<std::byte>(const Parameter&)>& values,
                      ByteSink& sink);

}  // namespace mantissa
