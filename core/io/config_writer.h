// Prints bound structs: as YAML that reads back to the same values, or as a flat map of path to value.
#pragma once

#include <map>
#include <string>

#include "core/io/config_fields.h"

namespace mantissa {

std::string write_config(const ConfigBinding& bind);

// "optimizer.lr" to "0.0003"; elements of lists are "precision.rules[0].match".
std::map<std::string, std::string> flatten_config(const ConfigBinding& bind);

}  // namespace mantissa
