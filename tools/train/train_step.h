// TrainStep: one step of training, from samples to updated weights.
//
// On a GPU the host does not stand inside a step: it plans the step on the assumption that every step before it is
// applied, queues it, and learns what became of it one step later. A step that is not applied (overflow, fault) makes
// the device hold: the step queued behind it changes nothing and is run again with the right plan. So the results are
// those of a host that waits, bit for bit.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/probe/run_probe.h"
#include "tools/train/step_report.h"
#include "tools/train/step_work.h"
#include "tools/train/update_curvature.h"

namespace mantissa {

class TrainStep {
 public:
  // `probe` looks at the steps that are due, unless it is nullptr; it must outlive the object.
  explicit TrainStep(Session& session, RunProbe* probe = nullptr);

  // Where delayed scaling has no amaxes yet: finds those of the next step's batch, in passes that do not round so and
  // whose gradients are dropped. run() does it, too, and again for the step behind where they were not finite;
  // evaluation before the first step needs it done. Collective.
  void calibrate() { calibrate(next_to_start()); }
  // Starts the next step and returns what is known by now, in order: where the host waits, the report of this very
  // step; else that of the step before, if there was one. session.next_step counts the reports given. Collective.
  std::vector<StepReport> run();
  // What the probe has found since the last call, of the step that run() reported last. On rank 0 that of all ranks.
  std::optional<ProbedStep> take_probed() { return std::exchange(probed_, std::nullopt); }
  // Waits for what has been started. Afterwards weights and optimizer are those of session.next_step. Collective.
  std::vector<StepReport> finish();
  // The step that run() would start: session.next_step, or one more while a step is under way.
  int64_t next_to_start() const { return session_.next_step + (pending_ ? 1 : 0); }

 private:
  using Clock = std::chrono::steady_clock;
  // A step that has been started.
  struct Pending {
    StepReport report;  // as planned
    float seed = 0.0f;  // of its backward passes
    std::unique_ptr<Event> decided;
    Clock::time_point started;
  };
  enum class Gradients : uint8_t { kKept, kOverwritten };  // of the step that is asked about

  // Whether a step may be started before it is known what became of the one before.
  bool runs_ahead() const;
  bool is_probed(int64_t step) const { return probe_ != nullptr && probe_->due(step); }
  // Whether precision.adaptive asks for the curvature along the update of this step.
  bool is_curvature_due(int64_t step) const;
  Pending start(int64_t step);
  void calibrate(int64_t step);
  // What the backward passes of the step start from.
  float seed_of(float scale, int64_t tokens) const;
  // Queues what start() has planned: passes, reduction, decision, update. Where configured, it is captured the second
  // time after the calibration, when all sizes are known and all choices made, and repeated from then on, but for steps
  // with a probe.
  void queue(RunProbe* probe);
  // The scaler as it will be if all that has been started is applied.
  GradScaler planned_scaler() const;
  // Waits for the decision about a step and takes it over.
  StepReport settle(const Pending& step, Gradients gradients);
  // Of a step whose gradients are not finite: whether the op that made them so is looked for.
  bool is_worth_a_hunt(const StepReport& report) const;
  // Finds out why a step was not applied, and lets updates happen again.
  void explain(StepReport& report, float seed, Gradients gradients);
  Tensor decision_slot(int64_t step) const;

  Session& session_;
  RunProbe* probe_;
  StepWork work_;
  UpdateCurvature curvature_;
  double boost_;
  int64_t queued_ = 0;  // steps since there are scales to round with
  int64_t calibrated_for_ = -1;
  float clean_scale_ = 0.0f;  // loss scale of the step before, where that was applied; else 0
  std::unique_ptr<CapturedWork> captured_;
  Tensor decisions_;  // u8 of two UpdateDecisions, in staging memory: of the steps with even and with odd numbers
  std::optional<Pending> pending_;
  std::optional<ProbedStep> probed_;
  Clock::time_point last_settled_;
};

}  // namespace mantissa
