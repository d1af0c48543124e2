// Delayed scaling takes the scale of a tensor in this step from its amaxes in earlier steps, so that rounding needs no
// pass of its own. Formula and defaults: NVIDIA Transformer Engine's DelayedScaling recipe.
//
// An amax that is not finite belongs to a step that overflowed. It is entered as 0, which counts as no amax: otherwise
// it would determine the scale for as long as it stays in the history.
#pragma once

#include <cstdint>

#include "core/quant/scales.h"

namespace mantissa {

enum class AmaxChoice : uint8_t { kMax, kMostRecent };

struct DelayedScalingOptions {
  int32_t history = 1024;  // steps
  AmaxChoice choice = AmaxChoice::kMax;
  int32_t margin = 0;  // powers of two left between the amax and the format's maximum
  bool operator==(const DelayedScalingOptions&) const = default;
};

// Enters the amax of step number `step` (from 0), as magnitude_bits(), into `history` (options.history entries, all 0
// at first). Returns the scale for the coming steps: `scale`, the current one, if there is no amax to derive it from.
constexpr float next_delayed_scale(const DelayedScalingOptions& options, uint32_t* history, int64_t step, uint32_t amax,
                                   float max, float scale) {
  const uint32_t entry = is_finite_magnitude(amax) ? amax : 0;
  history[step % options.history] = entry;
  uint32_t chosen = entry;
  if (options.choice == AmaxChoice::kMax) {
    for (int32_t i = 0; i < options.history; ++i) chosen = chosen < history[i] ? history[i] : chosen;
  }
  return tensor_scale(chosen, max, options.margin, scale);
}

}  // namespace mantissa
