#include "amp/autocast_policy.h"

#include <algorithm>

#include "core/base/check.h"

namespace mantissa {

AutocastPolicy::AutocastPolicy(const std::vector<PrecisionRule>& rules)
    : uniform_(unruled_precision()), matched_(rules.size()) {
  for (const PrecisionRule& rule : rules) {
    validate(rule);
    rules_.emplace_back(LayerPattern(rule.match), rule);
  }
  is_uniform_ = std::ranges::all_of(rules, [](const PrecisionRule& rule) { return rule.match == "**"; });
  if (!is_uniform_) return;
  for (const PrecisionRule& rule : rules) apply(rule, uniform_);
}

const Precision& AutocastPolicy::at(std::string_view layer_path) const {
  if (is_uniform_) return uniform_;  // a pass asks at every layer: no lock
  const std::lock_guard lock(mutex_);
  if (const auto known = layers_.find(layer_path); known != layers_.end()) return known->second;
  Precision precision = uniform_;
  for (size_t index = 0; index < rules_.size(); ++index) {
    const auto& [pattern, rule] = rules_[index];
    if (!pattern.matches(layer_path)) continue;
    matched_[index] = true;
    apply(rule, precision);
  }
  return layers_.emplace(layer_path, precision).first->second;
}

std::vector<std::string> AutocastPolicy::unmatched_patterns() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> patterns;
  for (size_t index = 0; index < rules_.size() && !is_uniform_; ++index) {
    if (!matched_[index]) patterns.push_back(rules_[index].second.match);
  }
  return patterns;
}

void assign_working_dtypes(ParameterSet& parameters, const PrecisionPolicy& policy, WorkingWeights mode) {
  for (int index = 0; index < parameters.size(); ++index) {
    Parameter& parameter = parameters[index];
    MANTISSA_CHECK(!parameter.weight.defined(), "[working_dtype] the weight of '{}' is already bound", parameter.name);
    const Precision& precision = policy.at(parameter.precision_layer());
    parameter.working_dtype = wide_of(precision.low);
    if (mode == WorkingWeights::kFp32 || parameter.shape.rank() < 2) continue;
    parameter.working_dtype = compute_dtype(precision, AutocastState{}, Op::kLinear, DType::kF32, DType::kF32);
  }
}

AutocastScope::AutocastScope(AutocastState change) : outer_(autocast_state()) {
  MANTISSA_CHECK(!change.dtype || is_floating(*change.dtype),
                 "[autocast_scope] dtype must be fp32, bf16 or fp16, got {}", *change.dtype);
  AutocastState& state = autocast_state();
  if (change.enabled) state.enabled = change.enabled;
  if (change.dtype) state.dtype = change.dtype;
}

}  // namespace mantissa
