// RunProbe: the probes of a run: which steps are looked at, and everything that is looked at in such a step.
//
//   if (probe.due(step)) {
//     probe.begin();                 // then the passes, the first micro-batch with probe.products()
//     probe.gradients_ready();       // after the reduction
//     probe.before_update(); ... probe.after_update();
//     probe.end(step, ...);          // when it is known whether the step was applied
//   }
#pragma once

#include <memory>

#include "tools/config/config.h"
#include "tools/probe/gradient_probe.h"
#include "tools/probe/probe_log.h"
#include "tools/probe/product_probe.h"
#include "tools/probe/update_probe.h"

namespace mantissa {

class RunProbe {
 public:
  // What a run is made of; all must outlive the object.
  struct Parts {
    FlatBuckets& buckets;
    GradientReducer& reducer;
    ShardedOptimizer& optimizer;
    Communicator& communicator;
    Backend& backend;
    Stream& stream;
  };
  // linear_layers: that a pass has.
  RunProbe(const Config& config, int linear_layers, const Parts& parts);

  bool due(int64_t step) const { return step % config_.interval == 0; }
  ProductObserver* products() { return &products_; }
  void begin() { products_.begin(); }
  void gradients_ready() { gradients_.look(); }
  void before_update() { updates_.before(); }
  void after_update() { updates_.after(); }
  // What the step has shown, on all ranks. There are updates where it was applied with a learning rate that is not 0,
  // of the parameters of which UpdateProbe knows them. Blocks; collective.
  ProbedStep end(int64_t step, float loss_scale, bool applied, double learning_rate);

 private:
  const ProbeConfig config_;
  Communicator& communicator_;
  ProductProbe products_;
  GradientProbe gradients_;
  UpdateProbe updates_;
};

}  // namespace mantissa
