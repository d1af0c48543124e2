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

// What a pattern is applied to.
struct PatternTarget {
  int64_t blocks = 0;              // of the model
  DType low = DType::kBF16;        // what "low" means
  std::optional<Recipe> recipe{};  // of the model or of linear layers
  bool recipe_is_the_ops = false;  // AutocastConfig::ops names it, which is above the level of layers
};

// The pattern's overrides, at the level of layers unless the recipe's is above. What is high is not rounded: it
// computes in `low` where there is a recipe, and in fp32 where there is none. ConfigError for a pattern without an
// effect.
std::vector<LayerOverride> overrides_of(const PatternOptions& options, const PatternTarget& target);

}  // namespace mantissa
