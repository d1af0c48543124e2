// FaultLimits: the observer that ends a run, or returns it to a checkpoint, after too many bad steps in a row.
#pragma once

#include "tools/train/trainer.h"

namespace mantissa {

// FaultError after faults.max_consecutive faults, faults.max_skipped skipped steps or stop_rules.consecutive spikes in
// a row. Counts are in RunState.
class FaultLimits final : public TrainObserver {
 public:
  // The session must outlive the object.
  explicit FaultLimits(const Session& session) : session_(session) {}

  void after_step(Trainer& trainer, const StepReport& step) override {
    count_spikes(trainer, step);
    if (!trainer.rollback()) count_skips(trainer, step);
  }

 private:
  void count_skips(Trainer& trainer, const StepReport& step);
  void count_spikes(Trainer& trainer, const StepReport& step);

  const Session& session_;
};

}  // namespace mantissa
