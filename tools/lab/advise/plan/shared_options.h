// What can be chosen for formats that all layers share: what the optimizer keeps, and what ranks send each other.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/plan/plan_places.h"

namespace mantissa {

// Kinds of shared formats, as --state names them.
inline constexpr const char* kMoments = "moments";
inline constexpr const char* kMasters = "masters";
inline constexpr const char* kWire = "wire";

// ConfigError for a text that names none of the three, and for one that is there twice.
void require_kinds(const std::vector<std::string>& kinds);

// Places of these kinds for a training on so many ranks. Masters are a choice with bf16 alone, whose weights can be
// their own; a wire is where there are several ranks. Its options are fp32, `low`, and what is configured. The gather
// of weights is none: it has 8 bits with delayed scaling alone, which plans have not, and then changes no bit.
std::vector<PlannedPlace> planned_shared(const Config& config, DType low, const std::vector<std::string>& kinds,
                                         int ranks);

// The shared format with its configured option alone, since the others could not be tried: `why`.
void leave_as_configured(PlannedPlace& place, const std::string& why);

}  // namespace mantissa
