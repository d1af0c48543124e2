// PrecisionControl: the observer of a training whose precision depends on measurements.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/train/trainer.h"

namespace mantissa {

// The configuration of a phase, with the rules that precision.fallback has added so far.
Config with_lifts(Config phase, const PrecisionFallback& fallback);

// precision.fallback lifts layers that overflow, precision.adaptive moves along a ladder of levels.
class PrecisionControl final : public TrainObserver {
 public:
  // `evaluated_at`: steps done at an evaluation that the state has seen, before a checkpoint; -1: none. `levels`: the
  // names of the ladder's levels.
  PrecisionControl(int64_t evaluated_at, std::vector<std::string> levels)
      : evaluated_at_(evaluated_at), levels_(std::move(levels)) {}

  void before_step(Trainer& trainer, int64_t step) override;
  void after_step(Trainer& trainer, const StepReport& step) override;
  void after_validation(Trainer& trainer, double loss) override;

 private:
  void lift_overflowed(Trainer& trainer, const StepReport& step);
  void lift(Trainer& trainer, const std::string& layer, const std::string& cause);
  void change_level(Trainer& trainer, int64_t steps);

  const int64_t evaluated_at_;
  const std::vector<std::string> levels_;
};

}  // namespace mantissa
