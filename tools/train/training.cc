#include "tools/train/training.h"

#include <algorithm>

#include "tools/config/precision_phases.h"
#include "tools/train/precision_control.h"
#include "tools/train/state_handover.h"

namespace mantissa {
namespace {

// What one session hands on to the next.
struct Handover {
  HeldState held;
  PrecisionSwitch why;
};

// Adds the settings that differ between two phases to the trainer's own reasons.
PrecisionSwitch with_changes(const Config& run, int before, int after, PrecisionSwitch why) {
  const std::vector<std::string> changes = training_differences(in_phase(run, before), in_phase(run, after));
  why.changes.insert(why.changes.end(), changes.begin(), changes.end());
  return why;
}

// Trains in one precision, from step `begin`. Nothing if the run ends with it.
std::optional<Handover> train_session(const Config& run, int64_t begin, RunState& state,
                                      const std::optional<Handover>& before, const ResumePoint* checkpoint,
                                      const TrainingHooks& hooks, Communicator& communicator) {
  const int phase = phase_of(run, begin, state);
  const Config config = with_lifts(in_phase(run, phase), state.fallback);
  Session session(config, communicator);
  std::optional<Trainer> trainer;
  try {
    if (before) before->held.hand_over(session);
    if (checkpoint != nullptr) resume(session, run, *checkpoint);
    TrainObservers observers = {std::make_shared<PrecisionControl>(checkpoint != nullptr ? begin : -1)};
    const SessionStart start{.by_switch = before ? &before->why : nullptr, .resumed = checkpoint != nullptr};
    RunProbe* const probe = hooks.begin(session, state, start, observers);
    trainer.emplace(session, state, std::move(observers), probe);
    const int64_t last = Trainer::last_step(run), end = std::min(phase_end(run, phase), last);
    std::optional<PrecisionSwitch> why = trainer->run(end);
    if (session.next_step >= last) {
      trainer->finish();
      return std::nullopt;
    }
    trainer->leave();
    const int next = phase_of(run, session.next_step, state);
    if (!why) why = PrecisionSwitch{.cause = phase_path(run, next)};
    if (next != phase) why = with_changes(run, phase, next, std::move(*why));
    return Handover{.held = HeldState(session), .why = std::move(*why)};
  } catch (const std::exception& error) {
    hooks.on_error(error);
    throw;
  }
}

}  // namespace

void train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
               Communicator& communicator) {
  int64_t step = checkpoint ? checkpoint->step : 0;
  RunState state = checkpoint ? run_state_of(run, *checkpoint) : RunState(run);
  const ResumePoint* resumes_from = checkpoint ? &*checkpoint : nullptr;
  std::optional<Handover> before;
  while (
      (before = train_session(run, step, state, before, std::exchange(resumes_from, nullptr), hooks, communicator))) {
    step = before->held.numbers().next_step;
  }
}

}  // namespace mantissa
