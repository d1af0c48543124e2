// The settings of a run that is analysed with others.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// As parse_config() of a run's settings, and with what its model would refuse refused. Of the run's own settings those
// are left out that say nothing beside the overrides, such as precision.delayed.history with precision.recipe=mxfp8:
// who gives the overrides did not give them. A line of the log names them. ConfigError; without overrides for such
// settings too.
Config run_settings(const std::string& yaml, const std::string& source, const std::vector<std::string>& overrides);

}  // namespace mantissa
