// The model of train.init_from, whose weights a training begins with.
#pragma once

#include <optional>
#include <string>

#include "tools/config/config.h"

namespace mantissa {

// The settings of a model of another program; nothing if `path` holds none. ConfigError naming what does not fit.
// tools/model sets this when it is linked into the program.
inline std::optional<ModelConfig> (*read_foreign_settings)(const std::string& path) = nullptr;

// The model section for the weights that `path` names: the folder of a Hugging Face model, a file of llm.c, a run
// folder or a checkpoint folder. ConfigError, beginning with the setting, if it is none of them.
ModelConfig model_of_weights(const std::string& path);

// The folder with the tokenizer.json for such weights; empty if there is none.
std::string tokenizer_of_weights(const std::string& path);

// ConfigError listing the settings in which `run.model` differs from `source`. Dropout, initial weights, LoRA and,
// without learned positions, the context may differ.
void require_same_model(const Config& run, const ModelConfig& source);

}  // namespace mantissa
