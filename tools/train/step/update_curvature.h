// UpdateCurvature: how well a step's gradient predicted the effect of its update on the loss.
#pragma once

#include <optional>
#include <vector>

#include "tools/train/step/step_work.h"

namespace mantissa {

// UpdateCurvature: how far the loss of a step's own batch after the update is from what the gradient promised
// (curvature_of() in amp/adaptive_precision.h). The loss is that of the same micro-batches in one more forward pass
// each, with the same dropout. Update and gradient are multiplied on the host, in double: in the precision under
// judgement small products would be lost.
//
// Cost: about a third of a step for the forward passes and three copies of this rank's weights from the device, and one
// copy of them in host memory.
class UpdateCurvature {
 public:
  // Both must outlive the object.
  UpdateCurvature(const ShardedState& state, StepWork& work) : state_(state), work_(work) {}

  // Before the step, with none under way. Blocks.
  void before();
  // After the step, with its gradients unchanged; they carry the factors loss scale and `prescale`. Nothing if the step
  // was skipped, its rate was 0, or the update does not lead downhill to first order, as momentum may not. The same on
  // all ranks. Collective; blocks.
  std::optional<double> after(const StepReport& step, double prescale);

 private:
  double gradient_dot_update();  // over this rank's shard

  const ShardedState& state_;
  StepWork& work_;
  std::vector<std::vector<float>> weights_;  // before the update, by piece of the optimizer
};

}  // namespace mantissa
