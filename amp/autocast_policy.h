// AutocastPolicy: builds the Precision of every layer from the configuration.
//
// Each op has a setting: a rule (low, fp32, widest, as_given) or a dtype. Its default is
//   low       linear, attention
//   fp32      embedding, layer_norm, rms_norm, cross_entropy
//   widest    add (the residual stream)
//   as_given  gelu, swiglu, rope, dropout
// as in PyTorch's autocast. There the embedding takes the dtype of its fp32 table, which starts the residual stream in
// fp32; a working table here may be stored in low precision, and the rule fp32 keeps the stream the same.
//
// layer_norm, rms_norm and cross_entropy accept no setting but fp32, here or for a layer: they compute in fp32 always.
// A norm's result is rounded to what its consumer computes in, and the loss reads the logits as they are, so that
// another setting could have no effect.
//
// Where several overrides apply:
//   the setting of an op: the most specific layer override that names it, else AutocastConfig::ops, else its default;
//   what `low` means in a layer: the most specific layer override that names no op, else AutocastConfig::dtype.
// More specific is the pattern with more literal characters (LayerPattern::literal_length); of equals, the later one.
// An override of a layer to fp32 without an op is final: no AutocastScope lowers that layer again.
//
// What linear layers round the operands of their products to is a setting of its own (a Recipe), of four levels. Each
// operand has that of the highest level which says anything about it, and within a level of the most specific override:
//   model     AutocastConfig::recipe, for all linear layers but the head
//   layer     overrides without an op; a dtype means that nothing is rounded
//   op        AutocastConfig::ops, then overrides of linear; all but a recipe mean that nothing is rounded
//   operand   overrides of a product or a role, then those of both; `low` means that it is not rounded
// What is not rounded is multiplied in the dtype that the layer computes in.
//
// How linear layers that compute in fp32 make their products (Fp32Products) is a third setting, of a whole layer: that
// of the most specific override of linear that names it, else of the most specific one without an op, else
// AutocastConfig::fp32_products. It reaches the head as well, and no AutocastScope changes it.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "amp/layer_lifts.h"
#include "amp/layer_pattern.h"
#include "amp/recipe.h"
#include "core/autograd/precision.h"

namespace mantissa {

using OpSetting = std::variant<CastRule, DType, Recipe>;

struct LayerOverride {
  std::string pattern;     // "blocks.*.mlp", see LayerPattern
  std::optional<Op> op{};  // nothing: the layer's low precision; the setting must then be a dtype or a recipe
  std::optional<OpSetting> setting{};           // nothing: only fp32_products are set
  std::optional<Product> product{};             // of linear layers: this product's operands alone
  std::optional<Role> role{};                   // likewise: the operands of this role
  std::optional<Fp32Products> fp32_products{};  // of linear layers

  // Whether it is about operands of linear layers.
  bool names_operands() const { return product || role; }
};

struct AutocastConfig {
  bool enabled = true;  // false: every op computes in the widest of its inputs, whatever stands below
  DType dtype = DType::kBF16;
  std::optional<Recipe> recipe{};                        // of linear layers
  Fp32Products fp32_products = Fp32Products::kFp32;      // of linear layers
  std::array<std::optional<OpSetting>, kOpCount> ops{};  // by Op
  std::vector<LayerOverride> layers{};
  LayerLifts lifts{};  // above all of these
};

// Parses an op's name, or its setting: "low", "widest", "as_given", "fp32", "bf16", "fp16", a recipe. ConfigError with
// the list of what is possible.
Op require_op(std::string_view name);
OpSetting require_op_setting(std::string_view text);

class AutocastPolicy final : public PrecisionPolicy {
 public:
  // Throws ConfigError if a pattern or a dtype makes no sense, or a setting could have no effect.
  explicit AutocastPolicy(AutocastConfig config);

  const Precision& at(std::string_view layer_path) const override;

  // Patterns that no layer asked for so far has matched; after a whole forward pass these are spelling errors.
  std::vector<std::string> unmatched_patterns() const;

 private:
  struct Override {
    LayerPattern pattern;
    LayerOverride given;
  };
  Precision build(std::string_view layer_path) const;
  LinearFormats build_linear(std::string_view layer_path) const;
  Fp32Products build_fp32_products(std::string_view layer_path) const;

  AutocastConfig config_;
  std::vector<Override> overrides_;  // from the least specific to the most specific
  Precision uniform_;                // of every layer that no override matches, but for linear formats
  bool is_uniform_ = false;          // nothing depends on the layer
  // Ranks may be threads that share a policy.
  mutable std::mutex mutex_;
  mutable std::map<std::string, Precision, std::less<>> layers_;  // built when first asked for
  mutable std::vector<bool> matched_;                             // by override
};

}  // namespace mantissa
