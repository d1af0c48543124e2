// RunProbe: the probes of a run: the steps to examine, and everything that is examined in such a step.
//
//   if (probe.due(step)) {
//     probe.begin();                 // then the passes, the first micro-batch with probe.products()
//     probe.gradients_ready();       // after the reduction
//     probe.before_update(); ... probe.after_update();
//     probe.end(step, ...);          // once it is known whether the step was applied
//   }
#pragma once

#include "comm/sharded_state.h"
#include "tools/config/config.h"
#include "tools/probe/parameter_probes.h"
#include "tools/probe/probe_log.h"
#include "tools/probe/product_probe.h"

namespace mantissa {

class RunProbe {
 public:
  // linear_layers: their number in a pass. reference: see ProductProbe. The state must outlive the object.
  RunProbe(const Config& config, int linear_layers, ShardedState& state, DType reference);

  bool due(int64_t step) const { return step % config_.interval == 0; }
  ProductObserver* products() { return &products_; }
  void begin() { products_.begin(); }
  void gradients_ready() { gradients_.measure(); }
  void before_update() { updates_.before(); }
  void after_update() { updates_.after(); }
  // The rows of the step, of all ranks. They include updates, as far as UpdateProbe knows them, if the step was applied
  // with a learning rate other than 0. Blocks; collective.
  ProbedStep end(int64_t step, float loss_scale, bool applied, double learning_rate);

 private:
  const ProbeConfig config_;
  Communicator& communicator_;
  ProductProbe products_;
  GradientProbe gradients_;
  UpdateProbe updates_;
};

}  // namespace mantissa
