// AutocastScope: switches autocast on or off, or changes its low-precision dtype, for the calling thread and the life
// time of the object.
//
//   AutocastScope off({.enabled = false});
//
// Scopes nest: what a scope does not name it takes from the one around it, and outside of every scope the policy
// decides. Other threads are not affected. A dtype named by a scope replaces the dtypes that the policy names for
// single ops, but never the rule fp32.
#pragma once

#include <cstddef>

#include "core/autograd/precision.h"

namespace mantissa {

class AutocastScope {
 public:
  // Throws ContractError if the dtype is not floating.
  explicit AutocastScope(AutocastState change);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  // Only on the stack: scopes end in reverse order, on the thread that opened them.
  void* operator new(size_t) = delete;
  void* operator new[](size_t) = delete;

 private:
  AutocastState outer_;
};

}  // namespace mantissa
