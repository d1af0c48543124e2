#include "tools/lab/analyze/sensitivity/decisions.h"

#include <fmt/ranges.h>

#include <set>
#include <variant>

#include "amp/autocast_policy.h"
#include "core/base/check.h"
#include "tools/config/precision_names.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

RuleFormat require_format(const std::string& text) {
  const std::optional<RuleFormat> format = parse_low_format(text);
  require<ConfigError>(
      format.has_value(),
      "--formats: expected some of bf16, fp16, current, block, mxfp8, nvfp4, or a recipe with a format "
      "(current:e5m2), got '{}'{}",
      text, parse_fp32_products(text) ? ": that is not a lower format but a way to multiply fp32 numbers" : "");
  const auto* const recipe = std::get_if<Recipe>(&*format);
  require<ConfigError>(recipe == nullptr || recipe->scaling != Scaling::kDelayed,
                       "--formats: '{}' takes its scales from earlier steps, but a single step has none: use current",
                       text);
  return *format;
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
  optimizer.master = MasterWeights::kF32;
  config.comm.reducer.wire = DType::kF32;
  config.comm.reducer.sharding = Sharding::kSharded;
  config.scaler = {};
  config.resolve_scaler_mode();
  return config;
}

std::vector<PrecisionDecision> decisions_of(const Config& config, const std::vector<std::string>& formats,
                                            const std::string& layers) {
  for (const std::string& format : formats) require_format(format);
  const LayerPattern pattern(layers);
  std::vector<PrecisionDecision> decisions;
  std::set<std::pair<std::string, Op>> met;
  for (const PlacedOp& op : ops_of(in_exact_precision(config))) {
    if (op.op != Op::kLinear && op.op != Op::kAttention) continue;
    if (!pattern.matches(op.layer) || !met.emplace(op.layer, op.op).second) continue;
    for (const std::string& format : formats) {
      const PrecisionDecision whole{.layer = op.layer, .op = op.op, .format = format};
      const bool is_dtype = std::holds_alternative<DType>(require_format(format));
      if (is_dtype) decisions.push_back(whole);
      if (is_dtype || op.op != Op::kLinear) continue;
      for (const Product product : kAllProducts) decisions.emplace_back(whole).product = product;
    }
  }
  require<ConfigError>(
      !decisions.empty(),
      "--layers '{}', --formats {}: expected a pattern that matches linear layers, such as 'blocks.*.mlp', or '**' "
      "for all, got one that leaves nothing to lower (`mantissa config` prints the paths)",
      layers, fmt::join(formats, ","));
  return decisions;
}

std::vector<PrecisionDecision> lowered_throughout(const Config& config, const std::string& format) {
  const AutocastPolicy policy(in_precision(config, parse_precision(format).value()).precision_rules());
  const auto is_lowered = [&](const PrecisionDecision& decision) {
    const Precision& precision = policy.at(decision.layer);
    if (decision.product) return precision.linear.rounds(*decision.product);
    const DType dtype = compute_dtype(precision, AutocastState(), decision.op, DType::kF32, DType::kF32);
    return dtype == std::get<DType>(require_format(format));
  };
  std::vector<PrecisionDecision> decisions = decisions_of(config, {format}, "**");
  std::erase_if(decisions, [&](const PrecisionDecision& decision) { return !is_lowered(decision); });
  return decisions;
}

Config lowered(Config exact, const PrecisionDecision& decision) {
  PrecisionRule rule{.match = decision.layer, .op = decision.op, .product = decision.product};
  rule.format = require_format(decision.format);
  exact.precision.rules.push_back(std::move(rule));
  return exact;
}

}  // namespace mantissa
