// Paths of a configuration: folders instead of data files, and runs that are continued from elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// The names and patterns in which each folder is replaced by the pattern of its files, "text" by "text/*". DataError
// for a folder without files, with text and token files (.bin, .idx, .safetensors), or with files that `format` does
// not mean; a pattern can name token files of another ending.
std::vector<std::string> in_folders(const std::vector<std::string>& names, DataFormat format);

// The files that names, patterns and folders of text mean, in this order. DataError as in_folders(), and for a pattern
// that no file matches.
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

}  // namespace mantissa
