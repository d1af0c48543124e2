// GPT-2 models of llm.c: a header, then all weights in fp32 (version 3) or bf16 (version 5). Source: write_model() in
// llm.c's train_gpt2.py.
#pragma once

#include <functional>
#include <string>

#include "core/io/files.h"
#include "models/model_config.h"
#include "tools/model/exchange/model_source.h"

namespace mantissa {

// Whether the file begins as a GPT-2 of llm.c.
bool is_llmc_model(const std::string& path);

// CheckpointError for a header of another model, or of another size than the file's.
ModelConfig read_llmc_config(const std::string& path);

// The tensors, by the names of the model's parameters. Rows that pad the vocabulary are left out. CheckpointError as
// above.
StoredTensors open_llmc_model(const std::string& path);

// Writes a model in fp32 or bf16. `values` gives a parameter's bytes in the dtype. ConfigError for a model that llm.c
// has not.
void write_llmc_model(const ModelConfig& model, DType dtype,
                      const std::function<std::vector<std::byte>(const Parameter&)>& values, ByteSink& sink);

}  // namespace mantissa
