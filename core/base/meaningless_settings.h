// MeaninglessSettings: an error about settings that have no effect beside the others. It lists their paths apart from
// the message, for callers that merge settings from several sources and can leave some out.
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
