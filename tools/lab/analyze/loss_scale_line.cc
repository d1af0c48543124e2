#include "tools/lab/analyze/loss_scale_line.h"

#include <cmath>

namespace mantissa {
namespace {

const LossScaleFindings* smallest(const ModelAnalysis& analysis) {
  const LossScaleFindings* found = nullptr;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    const LossScaleFindings& one = checkpoint.loss_scale;
    if (!one.recommended) continue;
    if (found == nullptr || one.recommended->exponent < found->recommended->exponent) found = &one;
  }
  return found;
}

// Whether there were steps, and none of them gave gradients.
bool all_skipped(const ModelAnalysis& analysis) {
  int64_t skipped = 0, steps = 0;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    skipped += checkpoint.loss_scale.skipped;
    steps += static_cast<int64_t>(checkpoint.steps.size());
  }
  return steps > 0 && skipped == steps;
}

// Where training would refuse the scale.
std::string refusal(int exponent, const ScalerConfig& scaler) {
  const double scale = std::ldexp(1.0, exponent);
  const auto told = [&](const char* limit, float value, const char* change) {
    return fmt::format("; scaler.{} = {:g} does not allow that: {} it to {:g}", limit, value, change, scale);
  };
  if (scale < static_cast<double>(scaler.min_scale)) return told("min_scale", scaler.min_scale, "lower");
  if (scale > static_cast<double>(scaler.max_scale)) return told("max_scale", scaler.max_scale, "raise");
  return "";
}

std::string room_left(const LossScaleFindings& found) {
  const double room = found.headroom;
  return found.options.percentile == 100.0
             ? fmt::format("the largest one has a factor of {:g} left", room)
             : fmt::format("{:g} % of them have a factor of {:g} left", found.options.percentile, room);
}

// Of gradients of which no scale follows.
std::string why_none(const LossScaleFindings& found) {
  const FormatLosses& all = found.losses.front();
  const auto per_cent = [&](int64_t count) { return 100.0 * all.share(count); };
  if (all.zeros == all.elements) return "since all gradients of activations are 0";
  if (all.non_finite > 0 && per_cent(all.elements - all.non_finite) < found.options.percentile) {
    return fmt::format("since {:.3g} % of the gradients of activations are not finite", per_cent(all.non_finite));
  }
  return fmt::format(
      "since {:.3g} % of the gradients of activations are 0, and so is their percentile {:g}: give a "
      "larger --percentile",
      per_cent(all.zeros), found.options.percentile);
}

// Where nothing is recommended at any checkpoint. Empty where there were no gradients.
std::string none_line(const ModelAnalysis& analysis) {
  constexpr const char* kNone = "No loss scale for fp16 is recommended, ";
  if (all_skipped(analysis)) return fmt::format("{}since every step was skipped", kNone);
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    const LossScaleFindings& found = checkpoint.loss_scale;
    if (!found.losses.empty() && found.losses.front().elements > 0) return kNone + why_none(found);
  }
  return "";
}

}  // namespace

std::string loss_scale_line(const ModelAnalysis& analysis) {
  const LossScaleFindings* const found = smallest(analysis);
  if (found == nullptr) return none_line(analysis);
  const StaticScale& scale = *found->recommended;
  const auto counted = static_cast<int64_t>(found->by_step.size()), steps = counted + found->skipped;
  std::string line = fmt::format(
      "In fp16 the gradients of activations take a static loss scale of 2^{}: {:.3g} % of them then underflow, in one "
      "step up to {:.3g} %, and {:.3g} % overflow ({})",
      scale.exponent, 100.0 * scale.losses.share(scale.losses.underflowed), 100.0 * found->largest_underflow(),
      100.0 * scale.losses.share(scale.losses.overflowed), room_left(*found));
  line += refusal(scale.exponent, analysis.config.scaler.scaler);
  if (2 * counted < steps) {
    line += fmt::format("; this rests on {} of {} steps, since the others were skipped: more --batches say more",
                        counted, steps);
  }
  return line;
}

}  // namespace mantissa
