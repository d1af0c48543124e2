// Models of llm.c: int32[256] header, then all weights of a kind for all layers, in fp32 (version 3) or bf16 (version
// 5). Source: write_model() in llm.c's train_gpt2.py.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/io/files.h"
#include "models/model.h"
#include "tools/exchange/stored_tensors.h"

namespace mantissa {

// Whether the file begins as a model of llm.c.
bool is_llmc_model(const std::string& path);

// CheckpointError for a header that describes no GPT-2.
ModelConfig read_llmc_config(const std::string& path);

// The tensors by the names of models/. Rows of the token table that pad the vocabulary are left out. CheckpointError if
// the file's size is not what its header says.
StoredTensors open_llmc_model(const std::string& path);

// Writes a model in fp32 or bf16. `values` gives a parameter's bytes in that dtype. ConfigError for a model that llm.c
// has not.
void write_llmc_model(const ModelConfig& model, DType dtype,
                      const std::function<std::vector<std::byte>(const Parameter&)>& values, ByteSink& sink);

}  // namespace mantissa
