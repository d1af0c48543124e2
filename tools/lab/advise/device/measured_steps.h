// MeasuredSteps: real steps of a model, in memory, on random tokens.
#pragma once

#include <memory>
#include <vector>

#include "core/profile/op_times.h"
#include "tools/config/config.h"
#include "tools/train/train_step.h"

namespace mantissa {

class MeasuredSteps {
 public:
  // One rank. The model, its batches and its precision are the configuration's; data, schedule and evaluation are not:
  // steps follow each other as in a long training whose updates are small. Steps are profiled. ConfigError and
  // DataError as for a training.
  MeasuredSteps(const Config& config, Communicator& communicator);

  // Seconds of each of so many steps; FaultError if one was skipped, which takes another time.
  std::vector<double> run(int steps);
  // Of all steps of run().
  const OpTimes& op_times();
  Backend& backend() { return *session_->runtime.backend; }
  Stream& stream() { return *session_->runtime.stream; }

 private:
  Config config_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<TrainStep> step_;
};

}  // namespace mantissa
