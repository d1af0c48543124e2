// The loop of a session, step after step. Everything else is an observer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tools/run/state/run_state.h"
#include "tools/train/checkpoint.h"
#include "tools/train/step/train_step.h"

namespace mantissa {

// Why a session continues the one before in another precision.
struct PrecisionSwitch {
  std::string cause{};                 // "precision.schedule[0]"
  std::vector<std::string> changes{};  // "precision.compute: fp32 -> bf16"
  // For precision.adaptive: the levels, else -1, and the bad signals.
  int from_level = -1, to_level = -1;
  std::vector<BadSignal> signals{};
};

// Why a run returns to an earlier step.
struct Rollback {
  std::string cause{};             // "3 spikes in a row, the last in step 41: …"
  int64_t from_step = 0;           // steps done
  int64_t next_batch = 0;          // after spikes (StopRulesConfig): the global batch with which training goes on
  int count = 0;                   // rollbacks after spikes in the run, this one included
  bool changes_precision = false;  // by precision.adaptive.rollback: the same batches on another level
};

// Where a session's state comes from, and why it starts there.
struct Start {
  // The first weights (as find_initial_weights() returns them; empty: random ones), a checkpoint, or the state of the
  // session before.
  std::variant<std::string, ResumePoint, HeldState> from{};
  std::optional<PrecisionSwitch> by_switch{};
  std::optional<Rollback> rollback{};

  const ResumePoint* checkpoint() const { return std::get_if<ResumePoint>(&from); }
  // Whether the session is the first of this process.
  bool is_first() const { return !by_switch && !rollback; }
  int64_t steps_done() const {
    if (const auto* const held = std::get_if<HeldState>(&from)) return held->numbers().next_step;
    return checkpoint() != nullptr ? checkpoint()->step : 0;
  }
  // The steps whose records a file of the run keeps; nothing where a run begins, which leaves other runs' files aside.
  std::optional<int64_t> kept_steps() const {
    return steps_done() > 0 || rollback ? std::optional<int64_t>(steps_done()) : std::nullopt;
  }
};

class Trainer;

// Called on all ranks alike, so that calls may be collective. Observers are called in the order in which they are
// given.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // `step` (from 0) is about to start. May call Trainer::settle() and request_switch().
  virtual void before_step(Trainer&, int64_t /*step*/) {}
  // The outcome of a step is known.
  virtual void after_step(Trainer&, const StepReport&) {}
  virtual void after_validation(Trainer&, double /*loss, nats per token*/) {}
  // Whether at_pause() is due after so many steps.
  virtual bool pauses_after(int64_t /*steps*/) const { return false; }
  // No step is under way: weights and optimizer are those of session().next_step.
  virtual void at_pause(Trainer&) {}
  // Whether at_pause() keeps the state, which then is examined for corruption before.
  virtual bool keeps_state() const { return true; }
  // The run ends here.
  virtual void at_end(Trainer&, Ending) {}
  // The session ends, and all that belongs to it. After at_end().
  virtual void before_leave(Trainer&) {}
  // Examines steps for this observer; null: nothing to examine.
  virtual StepExaminer* examiner() { return nullptr; }
};
using TrainObservers = std::vector<std::shared_ptr<TrainObserver>>;

// Whether something with this interval is due after so many steps; an interval of 0 never is.
constexpr bool is_due(int64_t interval, int64_t steps) { return interval > 0 && steps % interval == 0; }

class Trainer {
 public:
  // The session and the state are at the same step. `stop`: see TrainStep. References must outlive the trainer.
  Trainer(Session& session, RunState& state, TrainObservers observers, StopRequest* stop = nullptr);

  // Trains up to step `end`, or until an observer requests a switch of precision, which it returns, or a rollback, or a
  // rank asks to stop. FaultError as soon as an update has made masters or moments non-finite; DataError, alike on all
  // ranks, if a rank cannot read samples ahead; errors of observers. CorruptionError after at_end(kCorrupt).
  // Collective.
  std::optional<PrecisionSwitch> run(int64_t end);
  // Ends the run: with kDone at TrainConfig::last_step(). Collective.
  void finish(Ending ending);
  // Before another session continues the run. Collective.
  void leave() {
    for (const auto& observer : observers_) observer->before_leave(*this);
  }

  // ---- For observers.

  Session& session() { return session_; }
  RunState& state() { return state_; }
  bool is_leader() const { return session_.communicator.rank() == 0; }
  // The verdict that carried the request of a rank to stop, if there was one.
  const std::optional<Verdict>& stopped_by() const { return stopped_by_; }
  const std::optional<Rollback>& rollback() const { return rollback_; }
  bool is_switching() const { return switch_.has_value(); }
  // Completes the step under way, and reports it to the observers.
  void settle();
  // Ends run() before the next step. Returns the switch to fill in; several causes become one switch.
  PrecisionSwitch& request_switch(const std::string& cause);
  // Ends run() after this step.
  void request_rollback(Rollback rollback) { rollback_ = std::move(rollback); }
  // Informs all observers of a loss on validation text.
  void report_validation(double loss) {
    for (const auto& observer : observers_) observer->after_validation(*this, loss);
  }
  // Ends the run by this error, after at_end(kFailed).
  template <typename Error>
  [[noreturn]] void fail(const std::string& message) {
    end_failed();
    throw Error(message);
  }

 private:
  void take(const std::vector<StepReport>& steps);
  // After so many steps, calls the observers that pause then.
  void pause(int64_t steps);
  // FaultError if masters or moments are not finite: before they are evaluated, saved, or handed to another session.
  void require_finite_state();
  void end_failed();

  Session& session_;
  RunState& state_;
  TrainObservers observers_;
  TrainStep step_;
  std::optional<PrecisionSwitch> switch_;
  std::optional<Verdict> stopped_by_;
  std::optional<Rollback> rollback_;
};

}  // namespace mantissa
