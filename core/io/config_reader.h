// Reads a configuration tree into bound structs, strictly: whatever is unknown or of a wrong type is refused.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/io/config_fields.h"
#include "core/io/config_node.h"

namespace mantissa {

// Where each given setting was written: path ("optimizer.lr") to "gpt.yaml:12:3". Settings left at their defaults are
// absent.
using ConfigOrigins = std::map<std::string, std::string>;

// Names that users of other programs try, and the setting that they mean: {"learning_rate", "optimizer.lr"}.
using ConfigSynonyms = std::vector<std::pair<std::string, std::string>>;

// Fields that the tree does not name keep their values. Throws one ConfigError that lists every unknown key (with the
// section where it would belong, or a did-you-mean) and every wrong value (with what was expected and what came).
ConfigOrigins read_config(const ConfigNode& root, const ConfigBinding& bind, const ConfigSynonyms& synonyms = {});

}  // namespace mantissa
