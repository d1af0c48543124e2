#include "tools/train/step/train_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <ranges>
#include <utility>

#include "comm/sharded_state.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/profile/range.h"

namespace mantissa {
namespace {

constexpr int64_t kDecisionBytes = sizeof(UpdateDecision);

}  // namespace

TrainStep::TrainStep(Session& session, const std::vector<StepExaminer*>& examiners, StopRequest* stop)
    : session_(session),
      stop_(stop),
      work_(session),
      verdicts_(session.groups, *session.runtime.backend, *session.runtime.stream),
      integrity_(session.config.integrity, session.sharded),
      integrity_examiner_(integrity_, *session.runtime.delayed_scales, work_),
      curvature_(session, work_),
      noise_(session, work_),
      examiners_{&integrity_examiner_},
      prescale_(gradient_prescale(session)),
      decisions_(session.runtime.backend->allocate_staging(2 * kDecisionBytes, "update decisions"), DType::kU8,
                 {2 * kDecisionBytes}),
      last_settled_(Clock::now()) {
  examiners_.insert(examiners_.end(), examiners.begin(), examiners.end());
  examiners_.insert(examiners_.end(), {&curvature_, &noise_});
}

std::vector<StepReport> TrainStep::run() {
  std::vector<StepReport> reports;
  const Examiners examiners = due(next_to_start());
  if (!examiners.empty()) reports = finish();  // findings must belong to a step that is not void
  if (!reports.empty() && !reports.back().applied) return reports;
  for (StepExaminer* const examiner : examiners) examiner->before(next_to_start());
  Pending started = start(next_to_start(), examiners);
  if (pending_) {
    reports.push_back(settle(*std::exchange(pending_, std::nullopt), Gradients::kOverwritten));
    // A step started after a step that was not applied is void: it will be started again.
    if (!reports.back().applied) return reports;
  }
  if (runs_ahead() && examiners.empty()) {
    pending_ = std::move(started);
  } else {
    reports.push_back(settle(started, Gradients::kKept));
  }
  for (StepExaminer* const examiner : std::views::reverse(examiners)) examiner->after(reports.back());
  return reports;
}

TrainStep::Examiners TrainStep::due(int64_t step) const {
  Examiners found;
  std::ranges::copy_if(examiners_, std::back_inserter(found), [step](const auto* one) { return one->due(step); });
  return found;
}

std::vector<StepReport> TrainStep::finish() {
  std::vector<StepReport> reports;
  if (pending_) reports.push_back(settle(*std::exchange(pending_, std::nullopt), Gradients::kKept));
  session_.sharded.optimizer.await_weights();
  return reports;
}

bool TrainStep::runs_ahead() const {
  // On the CPU every call has finished when it returns. Adaptive clipping depends on the norm of the step before.
  return session_.runtime.backend->device().kind != Device::Kind::kCpu &&
         session_.config.optimizer.clip.kind != ClipOptions::Kind::kAdaptive;
}

TrainStep::Pending TrainStep::start(int64_t step, const Examiners& examiners) {
  const Range range(RangeKind::kPhase, "step");
  calibrate(step);
  Session& s = session_;
  Pending started = plan(step);
  Backend& backend = *s.runtime.backend;
  const auto body = [&] {
    PassOptions passes;
    for (StepExaminer* const examiner : examiners) {
      if (ProductObserver* const observer = examiner->start_passes()) passes.observer = observer;
    }
    work_.run(passes);
    for (StepExaminer* const examiner : examiners) examiner->after_passes(step);
    decide_and_update(examiners);
  };
  if (!is_captured(examiners)) {
    body();
  } else {
    if (!captured_) {
      s.sharded.optimizer.await_weights();
      s.sharded.buckets.bump_versions();  // so that the casts of the weights are part of it
      captured_ = backend.capture(*s.runtime.stream, [&] {
        body();
        s.sharded.optimizer.await_weights();
      });
    }
    const Range replay(RangeKind::kPhase, "replay");
    captured_->launch();
    s.groups.watch_captured(*s.runtime.stream);
    s.sharded.buckets.bump_versions();
  }
  backend.copy(verdicts_.decision(), decision_slot(step), *s.runtime.stream);
  started.decided = s.runtime.stream->record();
  return started;
}

TrainStep::Pending TrainStep::plan(int64_t step) {
  Session& s = session_;
  s.faults.begin_step(step);
  Pending started;
  started.started = Clock::now();
  StepReport& report = started.report;
  report.step = step;
  work_.load(step);
  report.tokens = work_.count_global_targets();
  const int64_t divisor = std::max<int64_t>(report.tokens, 1);
  GradScaler scaler = planned_scaler();
  report.scale = scaler.scale();
  const int64_t applied_steps = s.sharded.optimizer.applied_steps() + (pending_ ? 1 : 0);
  report.learning_rate = learning_rate(s.config.optimizer.schedule, applied_steps);
  UpdatePlan plan =
      plan_update(s.config.optimizer.adamw, applied_steps, static_cast<double>(scaler.unscale()) / prescale_,
                  s.clipper.threshold(), report.learning_rate);
  plan.step = step;
  if (stop_ != nullptr) plan.stop_request = stop_->poll();
  if (data_error_.empty()) data_error_ = work_.read_ahead(step);
  if (!data_error_.empty()) plan.stop_request = StopRequest::kBadData;
  started.limits = s.spikes.limits(step);
  started.watched = plan;
  started.watched.loss_limit = started.limits.loss * static_cast<double>(divisor);
  started.watched.norm_limit = started.limits.norm;
  if (s.spikes.holds_back()) plan = started.watched;
  if (report.tokens == 0) plan.loss_limit = -1.0;  // no loss is so small: the weights stay, without weight decay
  verdicts_.plan(plan);
  set_loss_gradient(report.scale, report.tokens);
  return started;
}

void TrainStep::decide_and_update(const Examiners& examiners) {
  Session& s = session_;
  {
    const Range range(RangeKind::kPhase, "decide");
    verdicts_.decide(work_.losses(), s.sharded.reducer, s.sharded.optimizer.faults());
    s.sharded.optimizer.record_amaxes();
    s.amaxes.run(verdicts_.decision());
  }
  const Range range(RangeKind::kPhase, "update");
  for (StepExaminer* const examiner : examiners) examiner->before_update();
  s.sharded.optimizer.step(s.sharded.reducer, verdicts_.control());
  if (!examiners.empty()) s.sharded.optimizer.await_weights();
  for (StepExaminer* const examiner : examiners) examiner->after_update();
}

bool TrainStep::is_captured(const Examiners& examiners) {
  if (session_.runtime.delayed_scales->calibrated()) ++queued_;  // before, weights may travel in another form
  return session_.captures_steps() && queued_ > 1 &&
         std::ranges::none_of(examiners, [](const StepExaminer* one) { return one->takes_part(); });
}

void TrainStep::calibrate(int64_t step) {
  Session& s = session_;
  DelayedScales& scales = *s.runtime.delayed_scales;
  if (scales.calibrated() || calibrated_for_ == step) return;
  calibrated_for_ = step;
  const Range range(RangeKind::kPhase, "calibrate");
  scales.begin_calibration();
  work_.load(step);
  set_loss_gradient(s.scaler.current_scale(), work_.count_global_targets());
  work_.run();
  s.sharded.optimizer.record_amaxes();
  s.amaxes.run({});
  scales.end_calibration();
}

GradScaler TrainStep::planned_scaler() const {
  GradScaler scaler = session_.scaler;
  if (pending_) {
    scaler.scale();
    scaler.unscale();
    scaler.step(StepOutcome::kClean);
    scaler.update();
  }
  return scaler;
}

StepReport TrainStep::settle(const Pending& step, Gradients gradients) {
  Session& s = session_;
  StepReport report = step.report;
  {
    const Range range(RangeKind::kPhase, "wait");
    step.decided->synchronize();
  }
  const UpdateDecision decision = read_decision(report.step);
  report.verdict = decision.verdict;
  report.loss = report.tokens > 0 ? decision.verdict.loss_sum / static_cast<double>(report.tokens) : std::nan("");
  report.grad_norm = decision.grad_norm;
  report.clip_factor = decision.clip_factor;
  if (decision.verdict.loss_finite && decision.outcome != StepOutcome::kGradientOverflow &&
      is_spike(decision.verdict.loss_sum, decision.grad_norm, step.watched)) {
    report.spike = describe(step.limits, report.loss, report.grad_norm);
  }
  s.scaler.scale();
  s.scaler.unscale();
  report.applied = s.scaler.step(decision.outcome);
  report.event = s.scaler.update();
  report.next_scale = s.scaler.current_scale();
  if (report.applied) {
    s.clipper.record(report.grad_norm);
    s.spikes.record({.step = report.step, .loss = report.loss, .norm = report.grad_norm});
    s.sharded.optimizer.count_applied_step();
  } else {
    explain(report, gradients);
  }
  clean_scale_ = report.applied ? report.scale : 0.0f;
  ++s.next_step;
  const auto now = Clock::now();
  report.seconds = std::chrono::duration<double>(now - std::max(step.started, last_settled_)).count();
  last_settled_ = now;
  return report;
}

UpdateDecision TrainStep::read_decision(int64_t step) const {
  UpdateDecision decision;
  if (!session_.runtime.backend->computes()) return decision;  // of a clean step
  std::memcpy(&decision, decision_slot(step).raw(), sizeof(decision));
  MANTISSA_CHECK(decision.step == step && !decision.held,
                 "[train_step] expected the decision about step {}, got that about step {}{}", step, decision.step,
                 decision.held ? ", held" : "");
  return decision;
}

bool TrainStep::is_worth_a_hunt(const StepReport& report) const {
  // A dynamic scale that has just grown, or comes down from its first value, overflows as it should; a hunt takes
  // longer than a step. If the same scale worked one step before, the cause may be another.
  return is_fault(report.event) || report.event == ScalerEvent::kHeldAtFloor || report.scale == clean_scale_;
}

void TrainStep::explain(StepReport& report, Gradients gradients) {
  Session& s = session_;
  const auto blame = [&report](std::optional<FoundOp> found) {
    if (!found) return;
    report.culprit = std::move(found->text);
    report.overflowed_layers = std::move(found->stored_by);
  };
  if (!report.verdict.state_finite) {
    report.culprit = describe_state_faults(s.sharded);
    return verdicts_.release_hold();
  }
  if (gradients == Gradients::kOverwritten) {
    s.runtime.stream->synchronize();  // the next step has run: its gradients give way
    work_.load(report.step);
    set_loss_gradient(report.scale, report.tokens);
    work_.run();
  }
  if (!report.verdict.loss_finite) {
    blame(work_.find_culprit(Pass::kForward));
  } else if (!report.verdict.gradients_finite) {
    report.offender = verdicts_.find_offender(report.verdict, s.sharded.reducer,
                                              s.sharded.buckets);  // needs the gradients as they are
    report.hunted = is_worth_a_hunt(report);
    if (report.hunted) blame(work_.find_culprit(Pass::kBackward));
  }
  s.runtime.delayed_scales->forget_records();
  verdicts_.release_hold();
}

Tensor TrainStep::decision_slot(int64_t step) const {
  return decisions_.slice(step % 2 * kDecisionBytes, kDecisionBytes);
}

}  // namespace mantissa
