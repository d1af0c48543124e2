// PrecisionControl: observes a training whose precision changes by what is measured: precision.fallback lifts layers
// that overflow, precision.adaptive moves along a ladder of levels.
#pragma once

#include "tools/train/trainer.h"

namespace mantissa {

class PrecisionControl final : public TrainObserver {
 public:
  // `evaluated_at`: steps done at an evaluation that the state has seen, before a checkpoint; -1: none.
  explicit PrecisionControl(int64_t evaluated_at) : evaluated_at_(evaluated_at) {}

  void before_step(Trainer& trainer, int64_t step) override;
  void after_step(Trainer& trainer, const StepReport& step, const ProbedStep* probed) override;
  void after_validation(Trainer& trainer, double loss) override;

 private:
  void lift_overflowed(Trainer& trainer, const StepReport& step);
  void lift(Trainer& trainer, const std::string& layer, const std::string& cause);
  void change_level(Trainer& trainer, int64_t steps);

  const int64_t evaluated_at_;
};

}  // namespace mantissa
