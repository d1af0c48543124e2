// Advice for the present device: times kernels, and runs steps of the configuration to compare with the prediction.
#pragma once

#include <memory>

#include "core/profile/op_times.h"
#include "tools/lab/advise/advice.h"
#include "tools/train/step/train_step.h"

namespace mantissa {

// Real steps of a model, in memory, on random tokens.
class MeasuredSteps {
 public:
  // One rank. Model, batches and precision are the configuration's; data, schedule and evaluation are not: steps follow
  // each other as in a long training with small updates. Steps are profiled. ConfigError and DataError as for a
  // training.
  MeasuredSteps(const Config& config, Communicator& communicator);

  // Seconds of each of this many steps. FaultError if one was skipped, since its time differs.
  std::vector<double> run(int steps);
  // The profile of all steps of run().
  const OpTimes& op_times() { return session_->profiler->finish(); }
  Backend& backend() { return *session_->runtime.backend; }
  Stream& stream() { return *session_->runtime.stream; }

 private:
  Config config_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<TrainStep> step_;
};

struct PresentAdvice {
  Advice advice;
  // The configured step as predicted and as measured, by phase and operation.
  Json comparison;
};

// Times kernels of the configured step and the step itself by turns in `rounds` rounds, so that other work on the
// machine affects both; kernels of other candidates once. One rank, alone. ConfigError as for a training.
PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds);
// A line, and a table of what takes time.
void add_comparison(const Json& comparison, ReportText& text);

}  // namespace mantissa
