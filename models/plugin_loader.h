// Loads models from shared libraries outside of the program (models/plugin.h).
#pragma once

#include <string>

namespace mantissa {

// Stands in every program and library that has the registry of models. A plugin must not have it.
#define MANTISSA_REGISTRY_MARK "mantissa registry of models"

// Hash of the file's bytes, 16 hex digits. ConfigError, as all errors here beginning with "model.plugin", if it cannot
// be read.
std::string plugin_digest(const std::string& path);

// Loads the plugin for the life of the process, unless it is loaded already: it registers its models. `digest`:
// plugin_digest() of the file when the run started; empty: any. ConfigError, before anything of the file has run, if it
// is missing or has changed, is not a plugin, belongs to another version or compiler, or has a copy of our library in
// it. ConfigError also if it cannot be loaded, or registers no model.
void load_plugin(const std::string& path, const std::string& digest);

}  // namespace mantissa
