#include "amp/precision_fallback.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr int kMaxFallbackDoublings = 6;

// The compute dtype of an op whose format is a dtype or `low`. Other ops follow their inputs.
DType dtype_of(const Precision& precision, Op op) { return compute_dtype(precision, {}, op, DType::kF32, DType::kF32); }

bool rounds(const Precision& precision, Op op) { return op == Op::kLinear && precision.linear.any(); }

}  // namespace

int lift_room(const Precision& precision, Op op) {
  const DType dtype = dtype_of(precision, op);
  return (rounds(precision, op) ? 1 : 0) + (dtype == DType::kF16 ? 2 : dtype == DType::kBF16 ? 1 : 0);
}

std::string describe_lift(const Precision& precision, Op op) {
  const DType dtype = dtype_of(precision, op);
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      const auto format = precision.linear.at(product, role);
      if (format && rounds(precision, op)) return fmt::format("{} in {}", name(*format), dtype);
    }
  }
  return fmt::format("{}", dtype);
}

std::vector<PrecisionRule> lift_rules(const std::string& layer, Op op, const Precision& precision, int levels) {
  DType dtype = dtype_of(precision, op);
  for (int level = rounds(precision, op) ? 1 : 0; level < levels; ++level) {
    dtype = dtype == DType::kF16 ? DType::kBF16 : DType::kF32;
  }
  std::vector<PrecisionRule> rules = {{.match = layer, .op = op, .format = dtype, .source = "precision.fallback"}};
  if (op == Op::kLinear && dtype == DType::kF32 && precision.fp32_products != Fp32Products::kFp32) {
    rules.push_back({.match = layer, .op = op, .format = precision.fp32_products, .source = "precision.fallback"});
  }
  return rules;
}

void validate(const FallbackOptions& options) {
  if (options.overflows >= 0 && options.window > 0 && options.clean_steps > 0 && options.overflows <= options.window) {
    return;
  }
  throw ConfigError(
      fmt::format("[precision_fallback] expected overflows from 0 to the window, and a window and clean_steps above 0, "
                  "got overflows = {}, window = {}, clean_steps = {}",
                  options.overflows, options.window, options.clean_steps));
}

bool PrecisionFallback::overflowed(int64_t step, const std::string& layer, int room) {
  if (!enabled()) return false;
  Layer& found = state_[layer];
  found.since = step;
  std::erase_if(found.overflows, [&](int64_t before) { return before <= step - options_.window; });
  found.overflows.push_back(step);
  return static_cast<int>(found.overflows.size()) >= options_.overflows && lift_now(step, layer, room);
}

bool PrecisionFallback::lift_now(int64_t step, const std::string& layer, int room) {
  if (room <= 0) return false;
  Layer& found = state_[layer];
  ++found.levels;
  found.since = step;
  found.overflows.clear();
  return true;
}

bool PrecisionFallback::goes_back(const Layer& layer, int64_t step) const {
  const int64_t wait = options_.clean_steps << std::min(layer.returns, kMaxFallbackDoublings);
  return layer.levels > 0 && step - layer.since > wait;
}

bool PrecisionFallback::is_due(int64_t step) const {
  return std::any_of(state_.begin(), state_.end(), [&](const auto& entry) { return goes_back(entry.second, step); });
}

std::vector<std::string> PrecisionFallback::settle(int64_t step) {
  std::vector<std::string> back;
  for (auto& [name, layer] : state_) {
    if (!goes_back(layer, step)) continue;
    --layer.levels;
    ++layer.returns;
    layer.since = step - 1;
    back.push_back(name);
  }
  return back;
}

std::map<std::string, int> PrecisionFallback::lifts() const {
  std::map<std::string, int> lifts;
  for (const auto& [name, layer] : state_) {
    if (layer.levels > 0 && name != kWholeModel) lifts.emplace(name, layer.levels);
  }
  return lifts;
}

bool PrecisionFallback::leaves_fp16() const {
  const auto whole = state_.find(kWholeModel);
  return whole != state_.end() && whole->second.levels > 0;
}

}  // namespace mantissa
