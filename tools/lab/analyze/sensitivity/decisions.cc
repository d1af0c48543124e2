#include "tools/lab/analyze/sensitivity/decisions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "amp/layer_pattern.h"
#include "core/base/error.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

// A dtype or a recipe.
struct LowFormat {
  std::string name;
  std::optional<DType> dtype{};
  std::optional<Recipe> recipe{};
};

LowFormat require_format(const std::string& text) {
  const std::optional<DType> dtype = parse_float_dtype(text);
  if (dtype && *dtype != DType::kF32) return {.name = text, .dtype = dtype};
  const std::optional<Recipe> recipe = parse_recipe(text);
  if (recipe && recipe->scaling == Scaling::kDelayed) {
    throw ConfigError(fmt::format(
        "--formats: '{}' takes its scales from earlier steps, but a single step has none: use current", text));
  }
  if (recipe) return {.name = text, .recipe = recipe};
  throw ConfigError(
      fmt::format("--formats: expected some of bf16, fp16, current, block, mxfp8, nvfp4, or a recipe with a format "
                  "(current:e5m2), got '{}'",
                  text));
}

void add_decisions(const PlacedOp& op, const LowFormat& format, std::vector<PrecisionDecision>& decisions) {
  if (format.dtype) {
    decisions.push_back({.layer = op.layer, .op = op.op, .format = format.name});
  } else if (op.op == Op::kLinear) {
    for (const Product product : kAllProducts) {
      decisions.push_back({.layer = op.layer, .op = op.op, .product = product, .format = format.name});
    }
  }
}

}  // namespace

bool lowers_forward_product(const PrecisionDecision& decision) {
  return decision.op == Op::kLinear && decision.product.value_or(Product::kForward) == Product::kForward;
}

std::string place(const PrecisionDecision& decision) {
  if (decision.product) return fmt::format("{} {}", decision.layer, name(*decision.product));
  return decision.op == Op::kAttention ? fmt::format("{} attention", decision.layer) : decision.layer;
}

std::string name(const PrecisionDecision& decision) { return fmt::format("{} {}", place(decision), decision.format); }

Config in_exact_precision(const Config& given) {
  PrecisionConfig exact;
  exact.compute = DType::kF32;
  Config config = in_precision(given, exact);
  config.precision_fallback = {};
  AdamWOptions& optimizer = config.optimizer.adamw;
  optimizer.first_moment = optimizer.second_moment = MomentFormat::kF32;
  config.comm.reducer.wire = DType::kF32;
  config.comm.reducer.sharding = Sharding::kSharded;
  config.scaler = {};
  config.resolve_scaler_mode();
  return config;
}

std::vector<PrecisionDecision> decisions_of(const Config& config, const std::vector<std::string>& formats,
                                            const std::string& layers) {
  std::vector<LowFormat> low;
  for (const std::string& format : formats) low.push_back(require_format(format));
  const LayerPattern pattern(layers);
  std::vector<PrecisionDecision> decisions;
  std::set<std::pair<std::string, Op>> met;
  for (const PlacedOp& op : ops_of(in_exact_precision(config))) {
    if (op.op != Op::kLinear && op.op != Op::kAttention) continue;
    if (!pattern.matches(op.layer) || !met.emplace(op.layer, op.op).second) continue;
    for (const LowFormat& format : low) add_decisions(op, format, decisions);
  }
  if (decisions.empty()) {
    throw ConfigError(
        fmt::format("--layers '{}', --formats {}: expected a pattern that matches linear layers, such as "
                    "'blocks.*.mlp', or '**' for "
                    "all, got one that leaves nothing to lower (`mantissa config` prints the paths)",
                    layers, fmt::join(formats, ",")));
  }
  return decisions;
}

Config lowered(Config exact, const PrecisionDecision& decision) {
  const LowFormat format = require_format(decision.format);
  LayerOverride change{.pattern = decision.layer, .op = decision.op, .product = decision.product};
  if (format.dtype) {
    change.setting = *format.dtype;
  } else {
    change.op.reset();  // an operand's setting names no op
    change.setting = *format.recipe;
  }
  exact.precision.layers.push_back(std::move(change));
  return exact;
}

}  // namespace mantissa
