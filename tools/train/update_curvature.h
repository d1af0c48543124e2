// UpdateCurvature: how far the loss of a step's own batch is, behind the update, from what the gradient promised
// (curvature_of() in amp/adaptive_precision.h). The loss is that of the same micro-batches in one more forward pass
// each, with the same dropout; update and gradient are multiplied on the host, in double: in the precision that is
// being judged, a difference of gradients would be its rounding, and small products would be lost.
//
// What it costs: a copy of this rank's part of the weights on the host, three copies of that size from the device, and
// the forward passes: about a third of a step.
#pragma once

#include <optional>
#include <vector>

#include "tools/train/step_report.h"
#include "tools/train/step_work.h"

namespace mantissa {

class UpdateCurvature {
 public:
  // Both must outlive the object.
  UpdateCurvature(Session& session, StepWork& work) : session_(session), work_(work) {}

  // Before the step, with nothing under way. Blocks.
  void before();
  // Behind it, with its gradients as they are; `boost`: what they are multiplied by besides the loss scale. Nothing
  // where the step was skipped, the rate was 0, or the update does not lead downhill to first order, as momentum may
  // not: then there is nothing to compare with. The same on all ranks. Collective; blocks.
  std::optional<double> after(const StepReport& step, double boost);

 private:
  // Of this rank's part.
  double gradient_dot_update();

  Session& session_;
  StepWork& work_;
  std::vector<std::vector<float>> weights_;  // of each piece of the optimizer, before the update
};

}  // namespace mantissa
