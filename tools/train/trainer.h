// The loop of a training. Everything else about a run is an observer, such as the control of its precision.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/state/run_state.h"
#include "tools/train/evaluation.h"
#include "tools/train/train_step.h"

namespace mantissa {

// The reason for which a new session, in another precision, continues a run.
struct PrecisionSwitch {
  std::string cause{};                 // "precision.schedule[0]"
  std::vector<std::string> changes{};  // "precision.compute: fp32 -> bf16"
  // For precision.adaptive: the levels, else -1, and the bad signals.
  int from_level = -1, to_level = -1;
  std::vector<BadSignal> signals{};
};

// A return to a checkpoint: after spikes (StopRulesConfig), or by precision.adaptive.rollback, which trains the same
// batches again on another level.
struct Rollback {
  std::string cause{};                         // "3 spikes in a row, the last in step 41: …"
  int64_t from_step = 0;                       // steps done
  int64_t next_batch = 0;                      // global batch with which training goes on
  int count = 0;                               // rollbacks after spikes in the run, this one included
  std::optional<PrecisionSwitch> by_switch{};  // of precision.adaptive
};

class Trainer;

// Called on all ranks alike, so that calls may be collective. Observers are called in the order in which they are
// given.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // `step` (from 0) is about to start. May call Trainer::settle() and request_switch().
  virtual void before_step(Trainer&, int64_t /*step*/) {}
  // The outcome of a step is known. `probed`: the findings of the probe, if the step was due.
  virtual void after_step(Trainer&, const StepReport&, const ProbedStep* /*probed*/) {}
  virtual void after_validation(Trainer&, double /*loss, nats per token*/) {}
  // Whether at_pause() is due after so many steps.
  virtual bool pauses_after(int64_t /*steps*/) const { return false; }
  // No step is under way: weights and optimizer are those of session().next_step.
  virtual void at_pause(Trainer&) {}
  // The run ends here.
  virtual void at_end(Trainer&, Ending) {}
  // The session ends, and with it what belongs to it alone. After at_end().
  virtual void before_leave(Trainer&) {}
};
using TrainObservers = std::vector<std::shared_ptr<TrainObserver>>;

class Trainer {
 public:
  // The session and the state are at the same step. `probe`, `stop`: see TrainStep. References must outlive the
  // trainer.
  Trainer(Session& session, RunState& state, TrainObservers observers, RunProbe* probe = nullptr,
          StopRequest* stop = nullptr);

  // Trains up to step `end`, or until a switch of precision is requested, which it returns, or until a rank asks to
  // stop, or until spikes ask for a rollback. FaultError after faults.max_consecutive faults, faults.max_skipped
  // skipped steps or stop_rules.consecutive spikes in a row, and as soon as an update has made masters or moments
  // non-finite; DataError, alike on all ranks, if a rank cannot read samples ahead. Both after at_end().
  // CorruptionError after at_end(kCorrupt). Collective.
  std::optional<PrecisionSwitch> run(int64_t end);
  // Ends the run: with kDone, at TrainConfig::last_step(), after an evaluation. Collective.
  void finish(Ending ending);
  // Before another session continues the run. Collective.
  void leave();

  // ---- For observers.

  Session& session() { return session_; }
  RunState& state() { return state_; }
  bool is_leader() const { return session_.communicator.rank() == 0; }
  // The verdict that carried the request of a rank to stop, if there was one.
  const std::optional<Verdict>& stopped_by() const { return stopped_by_; }
  const std::optional<Rollback>& rollback() const { return rollback_; }
  // Asks for the switch that was asked for, from an earlier state on.
  void request_rollback();
  // Completes the step under way, and reports it to the observers.
  void settle();
  // Ends run() before the next step. Returns the switch to fill in; several causes become one switch.
  PrecisionSwitch& request_switch(const std::string& cause);

 private:
  void run_steps(int64_t end);
  void evaluate();
  void take(const std::vector<StepReport>& steps);
  void count_skips(const StepReport& step);
  void count_spikes(const StepReport& step);
  // FaultError if masters or moments are not finite: before they are evaluated, saved, or handed to another session.
  void require_finite_state();
  // Ends the run, and throws.
  template <typename Error>
  [[noreturn]] void fail(const std::string& message);

  Session& session_;
  RunState& state_;
  TrainObservers observers_;
  TrainStep step_;
  Evaluation evaluation_;
  std::optional<PrecisionSwitch> switch_;
  std::optional<Verdict> stopped_by_;
  std::optional<Rollback> rollback_;
};

// Whether something with this interval is due after so many steps; an interval of 0 never is.
constexpr bool is_due(int64_t interval, int64_t steps) { return interval > 0 && steps % interval == 0; }

}  // namespace mantissa
