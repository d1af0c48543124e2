#include "amp/autocast_scope.h"

#include "core/base/check.h"

namespace mantissa {

AutocastScope::AutocastScope(AutocastState change) : outer_(autocast_state()) {
  MANTISSA_CHECK(!change.dtype || is_floating(*change.dtype),
                 "[autocast_scope] dtype must be fp32, bf16 or fp16, got {}", *change.dtype);
  AutocastState& state = autocast_state();
  if (change.enabled) state.enabled = change.enabled;
  if (change.dtype) state.dtype = change.dtype;
}

AutocastScope::~AutocastScope() { autocast_state() = outer_; }

}  // namespace mantissa
