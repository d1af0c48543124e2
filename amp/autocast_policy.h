// AutocastPolicy: the Precision of every layer, from the ordered list of precision rules. AutocastScope changes it for
// a stretch of code.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "amp/precision_rules.h"
#include "core/autograd/parameter.h"

namespace mantissa {

class AutocastPolicy final : public PrecisionPolicy {
 public:
  // Throws ConfigError if a rule is invalid.
  explicit AutocastPolicy(const std::vector<PrecisionRule>& rules);

  const Precision& at(std::string_view layer_path) const override;

  // Patterns that no layer asked for so far has matched; after a whole forward pass these are spelling errors.
  std::vector<std::string> unmatched_patterns() const;

 private:
  std::vector<std::pair<LayerPattern, PrecisionRule>> rules_;
  Precision uniform_;        // of every layer, if no rule names layers
  bool is_uniform_ = false;  // no rule names layers
  // Ranks may be threads that share a policy.
  mutable std::mutex mutex_;
  mutable std::map<std::string, Precision, std::less<>> layers_;  // built when first asked for
  mutable std::vector<bool> matched_;                             // by rule
};

// Sets working_dtype of every parameter, before its buffers are bound. Vectors (gains, biases) stay in fp32 in both
// modes: they are few, and norms and bias sums compute in fp32. The thread's AutocastScope plays no part.
void assign_working_dtypes(ParameterSet& parameters, const PrecisionPolicy& policy, WorkingWeights mode);

// Switches autocast on or off, or changes its low-precision dtype, for the calling thread and the life time of the
// object.
//
//   AutocastScope off({.enabled = false});
//
// Scopes nest: a scope inherits the settings that it does not name from the outer scope. Outside of every scope the
// policy decides. Other threads are not affected. A dtype named by a scope replaces the dtypes that the policy names
// for single ops, but never the rule fp32.
class AutocastScope {
 public:
  // Throws ContractError if the dtype is not floating.
  explicit AutocastScope(AutocastState change);
  ~AutocastScope() { autocast_state() = outer_; }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  // Only on the stack: scopes end in reverse order, on the thread that opened them.
  void* operator new(size_t) = delete;
  void* operator new[](size_t) = delete;

 private:
  AutocastState outer_;
};

}  // namespace mantissa
