// PrecisionRule: an entry of the ordered list that sets the precision of each layer. Rules apply in order, and the last
// match wins: a rule replaces earlier settings of the ops and operands that it names.
//
// A rule applies to the layers matched by `match`, and in these layers to
//   neither op, product nor role   linear layers and attention; a dtype then also sets the meaning of `low`
//   op                             this op
//   product, role                  these operands of linear layers
// Its format says
//   fp32, bf16, fp16       they compute in this dtype; linear layers round no operand further, and with fp32 multiply
//                          the numbers as they are
//   low                    they compute in the layer's low precision; of operands: they are not rounded further
//   widest, as_given       the op computes in the widest of its inputs, or in the dtype of the first
//   mxfp8, delayed:e5m2 …  a Recipe: linear layers compute in low precision, with the operands rounded so
//   tf32, bf16x3, bf16x6   how linear layers multiply that compute in fp32; all else stays as it is
//
// Before the first rule low precision is fp32, and every op has its default, as in PyTorch's autocast (kOps). There the
// embedding takes the dtype of its fp32 table, which starts the residual stream in fp32; a working table here may be
// stored in low precision, and the default fp32 keeps the stream the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/autograd/precision.h"
#include "core/quant/scales.h"

namespace mantissa {

// A scaling and the formats that go with it, as configurations name it: "mxfp8", "delayed:e5m2".
struct Recipe {
  Scaling scaling = Scaling::kCurrent;
  std::optional<Format> format{};  // nothing: the recipe's own for each role
  bool operator==(const Recipe&) const = default;
};

// The format of an operand with this role. The recipes' own formats: e2m1 for nvfp4. The others use e4m3 (more
// precision), or e5m2 (more range) for gradients with one scale a tensor.
TensorFormat format_for(Recipe recipe, Role role);

// As configurations write it.
std::string name(Recipe recipe);
// Nothing for any other text, or a format that the recipe does not have.
std::optional<Recipe> parse_recipe(std::string_view text);

// A pattern over layer paths, which are dotted names ("blocks.3.mlp.up"). Within a component `*`, `?` and `[0-4]` have
// their meaning from the shell; the component `**` stands for any number of components, none included. A pattern that
// matches a layer matches all layers below it: "blocks.0" covers "blocks.0.mlp.up".
class LayerPattern {
 public:
  // Throws ConfigError if `text` is empty or has an empty component.
  explicit LayerPattern(std::string_view text);

  // Whether it covers the layer.
  bool matches(std::string_view layer_path) const;

 private:
  std::vector<std::string> components_;
};

// CastRule::kFp32 and Fp32Products::kFp32 are written DType::kF32.
using RuleFormat = std::variant<CastRule, DType, Recipe, Fp32Products>;

// As configurations write it; nothing for any other text.
std::string name(const RuleFormat& format);
std::optional<RuleFormat> parse_rule_format(std::string_view text);
// For messages: all recipes, and all other formats.
extern const char* const kRecipeNames;
extern const char* const kPlainFormatNames;

// Sets the precision of ops or operands in the layers that match.
struct PrecisionRule {
  std::string match = "**";  // a LayerPattern
  std::optional<Op> op{};
  std::optional<Product> product{};
  std::optional<Role> role{};
  std::optional<RuleFormat> format{};  // a rule without one is invalid
  std::string source{};                // the short form of this rule: "precision.recipe"; empty: none

  bool names_operands() const { return product || role; }
};

// "{match: blocks.0, op: linear, format: mxfp8}"
std::string describe(const PrecisionRule& rule);
// Throws ConfigError if the pattern is invalid, or the named ops or operands cannot have the format.
void validate(const PrecisionRule& rule);
// The precision before the first rule.
Precision unruled_precision();
// Changes the precision of a layer that the rule matches.
void apply(const PrecisionRule& rule, Precision& precision);

enum class PrecisionPattern : uint8_t {
  kNone,
  kAllLow,           // the head as well
  kFp32EndsLowCore,  // embedding and head in fp32
  kAttentionHigh,    // attention and its projections
  kFirstLastKHigh,   // the first and the last blocks
};

// How the working weights of matrices are stored.
enum class WorkingWeights : uint8_t {
  kLow,   // in the dtype that their layer's matrix product computes in: cast once a step, by the optimizer
  kFp32,  // in fp32: cast where they are used, through the weight-cast cache
};

// The precision of a training, or of a part of it: rules, and short forms that stand for rules before them.
struct PrecisionConfig {
  DType compute = DType::kBF16;    // fp64: of everything
  std::optional<Recipe> recipe{};  // of all linear layers but the head
  PrecisionPattern pattern = PrecisionPattern::kNone;
  int64_t pattern_blocks = 1;  // of kFirstLastKHigh: how many at each end
  Fp32Products fp32_products = Fp32Products::kFp32;
  std::vector<PrecisionRule> rules{};
  // Independent of what layers compute in:
  WorkingWeights weights = WorkingWeights::kLow;
  DelayedScalingOptions delayed{};

  // Whether everything is fp64: then no rule, recipe or pattern holds.
  bool is_fp64() const { return compute == DType::kF64; }
  // Whether any op of any layer may compute in fp16.
  bool uses_fp16() const;
  // Replaces fp16 by bf16 everywhere.
  void leave_fp16();
};

// The rules that the short forms stand for in a model of so many blocks, then the configuration's own. ConfigError if
// the pattern leaves no block low.
std::vector<PrecisionRule> expand(const PrecisionConfig& config, int64_t model_blocks);

}  // namespace mantissa
