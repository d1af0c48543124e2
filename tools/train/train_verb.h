// `mantissa train`: from a configuration file to a finished run.
#pragma once

#include <string>
#include <vector>

namespace mantissa {

// Returns the exit code (see core/base/error.h). Errors of a job of several ranks end the whole job.
int train_verb(const std::string& config_path, const std::vector<std::string>& overrides);

}  // namespace mantissa
