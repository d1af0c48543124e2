// TrainStep: one step of training, from samples to updated weights.
//
// On a GPU the host does not wait inside a step. It plans each step as if all earlier steps were applied, queues it,
// and reads the outcome one step later. A step that is not applied (overflow, fault) makes the device hold: the next
// queued step changes nothing and runs again with the right plan. The results equal a waiting host's, bit for bit.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "tools/run/guard/stop_request.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/step_examiners.h"

namespace mantissa {

class TrainStep {
 public:
  // `examiners`: beside those of the configuration. `stop` says when this rank wants the training to end, unless it is
  // nullptr. All must outlive the object.
  explicit TrainStep(Session& session, const std::vector<StepExaminer*>& examiners = {}, StopRequest* stop = nullptr);

  // Gives delayed scaling its first amaxes if there are no amaxes: from passes on the next step's batch with scaling by
  // current amaxes. Their gradients are dropped. run() does it too, and again for the next step if they were not
  // finite. Evaluation before the first step needs it. Collective.
  void calibrate() { calibrate(next_to_start()); }
  // Starts the next step and returns the reports that are known by now, in order: of this very step where the host
  // waits, else of the step before, if there was one. session.next_step counts the reports given. CorruptionError for
  // corrupted state. Weights may be read by passes only until finish(). Collective.
  std::vector<StepReport> run();
  // Waits for the step under way. Afterwards weights and optimizer are those of session.next_step. Collective.
  std::vector<StepReport> finish();
  // With no step under way: CorruptionError unless the state may be saved. Collective.
  void require_intact_state() {
    session_.sharded.optimizer.await_weights();
    integrity_.at_rest(session_.next_step);
  }
  // Why samples of steps ahead cannot be read on this rank, which then asks to stop; empty: they can.
  const std::string& data_error() const { return data_error_; }
  // The step that run() would start: session.next_step, or the step after it while a step is under way.
  int64_t next_to_start() const { return session_.next_step + (pending_ ? 1 : 0); }

 private:
  using Clock = std::chrono::steady_clock;
  using Examiners = std::vector<StepExaminer*>;
  // A step that has been started.
  struct Pending {
    StepReport report;   // as planned
    UpdatePlan watched;  // with the limits of a spike, whether they hold back the update or not
    SpikeLimits limits{};
    std::unique_ptr<Event> decided;
    Clock::time_point started;
  };
  enum class Gradients : uint8_t { kKept, kOverwritten };  // by a step that was started since

  // Whether a step may start before the outcome of the previous one is known.
  bool runs_ahead() const;
  // The examiners that are due in this step.
  Examiners due(int64_t step) const;
  // Plans the step and queues it: passes, reduction, decision, update. With cuda.graph it is captured the second time
  // after the calibration, when all sizes are known and all kernels chosen, and replayed from then on, except steps in
  // which an examiner takes part.
  Pending start(int64_t step, const Examiners& examiners);
  Pending plan(int64_t step);
  void decide_and_update(const Examiners& examiners);
  // Whether this step is replayed, or captured to be replayed. Counts the steps since the calibration.
  bool is_captured(const Examiners& examiners);
  void calibrate(int64_t step);
  // Sets the gradient from which backward passes with this loss scale start.
  void set_loss_gradient(float scale, int64_t tokens) {
    work_.set_loss_gradient(static_cast<double>(scale) * prescale_, std::max<int64_t>(tokens, 1));
  }
  // The scaler as it will be if the step under way is applied.
  GradScaler planned_scaler() const;
  // Waits for the decision about a step and updates the session by it.
  StepReport settle(const Pending& step, Gradients gradients);
  UpdateDecision read_decision(int64_t step) const;
  // Whether to search for the op that made the step's gradients non-finite.
  bool is_worth_a_hunt(const StepReport& report) const;
  // Finds the cause of a step that was not applied, and releases the hold on updates.
  void explain(StepReport& report, Gradients gradients);
  Tensor decision_slot(int64_t step) const;

  Session& session_;
  StopRequest* stop_;
  StepWork work_;
  VerdictReduction verdicts_;
  IntegrityGuard integrity_;
  IntegrityExaminer integrity_examiner_;
  CurvatureExaminer curvature_;
  NoiseExaminer noise_;
  Examiners examiners_;
  double prescale_;     // gradient_prescale()
  int64_t queued_ = 0;  // steps since the calibration
  int64_t calibrated_for_ = -1;
  float clean_scale_ = 0.0f;  // loss scale of the previous step if that was applied; else 0
  std::unique_ptr<CapturedWork> captured_;
  Tensor decisions_;  // u8 of two UpdateDecisions in staging memory: of even and of odd steps
  std::optional<Pending> pending_;
  std::string data_error_;
  Clock::time_point last_settled_;
};

}  // namespace mantissa
