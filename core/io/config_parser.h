// YAML text to ConfigNode, over yaml-cpp's event parser.
#pragma once

#include <string>

#include "core/io/config_node.h"

namespace mantissa {

struct ConfigSource {
  // kOmit: the text is short and quoted whole in `name` (a command line), so positions would only confuse.
  enum class Positions { kShow, kOmit };
  std::string name;
  Positions positions = Positions::kShow;
};

// Any one YAML value; ConfigError for what is not one, or is outside of the subset that config_node.h names.
ConfigNode parse_yaml(const std::string& text, const ConfigSource& source);

}  // namespace mantissa
