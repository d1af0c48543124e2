// Paths of a configuration: folders instead of data files, runs that are continued from elsewhere, weights to begin
// with.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// The names and patterns in which each folder is replaced by the pattern of its files, "text" by "text/*". DataError
// for a folder without files, with text and token files (.bin, .idx, .safetensors), or with files that `format` does
// not mean; a pattern can name token files of another ending.
std::vector<std::string> in_folders(const std::vector<std::string>& names, DataFormat format);

// Whether a word among files is a setting: is_assignment(), or misspelt: A.B=VALUE, and no file has this name.
bool is_setting(const std::string& word);

// The files that names, patterns and folders of text mean, in this order. DataError as in_folders(), for a pattern
// without files, and for a missing file.
std::vector<std::string> text_files(const std::vector<std::string>& inputs);

// ConfigError for the folder of a model of another program.
void refuse_foreign_model(const std::string& folder);

// The settings file for `path`: itself, or the file in this run folder. ConfigError as above.
std::string configuration_file(const std::string& path);

// Whether this is the file in which a run keeps its settings.
bool is_config_of_run(const std::filesystem::path& file);

// For settings that `run_folder` keeps: their paths are as given; relative paths start where the run was started. This
// place follows from train.run_dir and the folder's own place. If this process was started elsewhere, or the folder has
// moved with its data, its paths become absolute. Settings of the command line are left as they are. A folder with
// another name than train.run_dir, such as a copy, is the same run; a line says so. Warns of relative paths that are
// not here if train.run_dir is absolute.
void relocate(Config& config, const std::filesystem::path& run_folder, const ConfigOrigins& origins);

// ---- The model of train.init_from, whose weights a training begins with.

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
