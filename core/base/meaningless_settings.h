// MeaninglessSettings: an error about settings that say nothing beside the others. It names them apart from the
// message, for who puts settings of several origins together and can leave some of them out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace mantissa {

class MeaninglessSettings : public ConfigError {
 public:
  MeaninglessSettings(std::vector<std::string> paths, const std::string& message)
      : ConfigError(message), paths_(std::move(paths)) {}

  // "precision.delayed" (a section), "precision.layers[2]" (an element of a list).
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

}  // namespace mantissa
