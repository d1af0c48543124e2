// The weights of a model as a file of this program: safetensors by the names of its parameters.
#pragma once

#include <string>

#include "core/io/checkpoint_store.h"
#include "tools/model/exchange/model_source.h"

namespace mantissa {

// Writes all parameters of the source to folder/name, each in its stored dtype, one at a time.
CheckpointFile write_weights_file(const ModelSource& source, const std::string& folder, const std::string& name);

// The model in such a file. CheckpointError as ModelSource().
std::unique_ptr<ModelSource> open_weights_file(const std::string& path, const ModelConfig& model);

}  // namespace mantissa
