#include "amp/precision_pattern.h"

#include <fmt/core.h>

#include "core/base/meaningless_settings.h"

namespace mantissa {
namespace {

// The layer, and its linear layers where a recipe is theirs by name.
void add_layer(std::vector<LayerOverride>& overrides, const PatternTarget& target, const std::string& pattern,
               DType dtype) {
  overrides.push_back({.pattern = pattern, .setting = dtype});
  if (target.recipe_is_the_ops) overrides.push_back({.pattern = pattern, .op = Op::kLinear, .setting = dtype});
}

}  // namespace

std::vector<LayerOverride> overrides_of(const PatternOptions& options, const PatternTarget& target) {
  const auto& [model_blocks, low, recipe, recipe_is_the_ops] = target;
  if (options.pattern != PrecisionPattern::kNone && !recipe && low == DType::kF32) {
    throw MeaninglessSettings(
        {"precision.pattern"},
        "precision.pattern has no meaning where everything computes in fp32: give precision.compute=bf16 or fp16, or a "
        "precision.recipe");
  }
  const DType high = recipe ? low : DType::kF32;
  std::vector<LayerOverride> overrides;
  switch (options.pattern) {
    case PrecisionPattern::kNone:
      break;
    case PrecisionPattern::kAllLow:
      if (!recipe || recipe_is_the_ops) {
        throw MeaninglessSettings(
            {"precision.pattern"},
            "precision.pattern: all_low has no effect without precision.recipe, which leaves out the head: everything "
            "is as low as precision.compute and precision.ops say already; give precision.recipe, or remove the "
            "pattern");
      }
      overrides.push_back({.pattern = "head", .op = Op::kLinear, .setting = *recipe});
      break;
    case PrecisionPattern::kFp32EndsLowCore:
      add_layer(overrides, target, "token_embedding", DType::kF32);
      add_layer(overrides, target, "head", DType::kF32);
      break;
    case PrecisionPattern::kAttentionHigh:
      add_layer(overrides, target, "blocks.*.attention", high);
      break;
    case PrecisionPattern::kFirstLastKHigh:
      if (model_blocks < 3) {
        throw ConfigError(
            fmt::format("precision.pattern: first_last_k_high keeps at least one block at each end high, and none of "
                        "the model's {} would be low: give model.layers of at least 3, or another precision.pattern",
                        model_blocks));
      }
      if (2 * options.blocks >= model_blocks) {
        throw ConfigError(
            fmt::format("precision.pattern_blocks = {} at each end leave none of the model's {} blocks low: give at "
                        "most {}, or a model of more layers",
                        options.blocks, model_blocks, (model_blocks - 1) / 2));
      }
      for (int64_t block = 0; block < options.blocks; ++block) {
        add_layer(overrides, target, fmt::format("blocks.{}", block), high);
        add_layer(overrides, target, fmt::format("blocks.{}", model_blocks - 1 - block), high);
      }
      break;
  }
  return overrides;
}

}  // namespace mantissa
