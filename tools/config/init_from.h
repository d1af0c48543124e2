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

// ---- Files of a Hugging Face folder that a run takes along and gives back: its tokenizer and its settings.

// Where a run folder keeps them.
inline constexpr const char* kCarriedFolder = "huggingface";

// The folder with such files for a Hugging Face folder (itself), a run folder or a checkpoint folder of a run; empty if
// there is none.
std::string carried_folder(const std::string& path);

// Copies the files found in `from` to the folder `to`, made only if there are any. Error naming a file that cannot be
// copied.
void carry_files(const std::string& from, const std::string& to);
// The same for the files of a tokenizer only.
void carry_tokenizer(const std::string& from, const std::string& to);

}  // namespace mantissa
