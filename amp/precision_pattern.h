// Shipped patterns of precision over the layers of a transformer, as overrides that a configuration could give as well.
#pragma once

#include <cstdint>
#include <vector>

#include "amp/autocast_policy.h"

namespace mantissa {

enum class PrecisionPattern : uint8_t {
  kNone,
  kAllLow,           // the head as well
  kFp32EndsLowCore,  // embedding and head in fp32
  kAttentionHigh,    // attention and its projections
  kFirstLastKHigh,   // the first and the last blocks
};

struct PatternOptions {
  PrecisionPattern pattern = PrecisionPattern::kNone;
  int64_t blocks = 1;  // of kFirstLastKHigh: how many at each end
};

// Overrides for a model of so many blocks. What is high is not rounded: it computes in `low`, what "low" means, where
// there is a recipe, and in fp32 where there is none. ConfigError if all blocks would be high.
std::vector<LayerOverride> overrides_of(const PatternOptions& options, int64_t model_blocks,
                                        std::optional<Recipe> recipe, DType low);

}  // namespace mantissa
