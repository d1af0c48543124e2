#include "tools/train/train_step.h"

#include <cmath>
#include <cstring>

#include "comm/state_faults.h"
#include "core/profile/range.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {
namespace {

constexpr int64_t kDecisionBytes = sizeof(UpdateDecision);

}  // namespace

TrainStep::TrainStep(Session& session, RunProbe* probe, StopRequest* stop)
    : session_(session),
      probe_(probe),
      stop_(stop),
      work_(session),
      curvature_(session.sharded, work_),
      verdicts_(session.communicator, *session.runtime.backend, *session.runtime.stream),
      integrity_(session.config.integrity, session.sharded),
      prescale_(std::ldexp(1.0, gradient_prescale_log2(session.ranks(), session.micro_batches()))),
      decisions_(session.runtime.backend->allocate_staging(2 * kDecisionBytes, "update decisions"), DType::kU8,
                 {2 * kDecisionBytes}),
      last_settled_(Clock::now()) {}

std::vector<StepReport> TrainStep::run() {
  std::vector<StepReport> reports;
  const bool probed = is_probed(next_to_start()), curved = is_curvature_due(next_to_start());
  const bool examined = integrity_.is_due(next_to_start()), compares = is_noise_due(next_to_start());
  if (probed || curved || examined || compares) reports = finish();  // findings must belong to a step that is not void
  if (!reports.empty() && !reports.back().applied) return reports;
  if (curved) curvature_.before();
  const double squares = compares ? sum_of_squared_norms(next_to_start()) : 0.0;
  Pending started = start(next_to_start());
  if (pending_) {
    reports.push_back(settle(*std::exchange(pending_, std::nullopt), Gradients::kOverwritten));
    // A step that was started after one that was not applied is void: it will be started again.
    if (!reports.back().applied) return reports;
  }
  if (runs_ahead() && !probed && !curved && !examined && !compares) {
    pending_ = std::move(started);
  } else {
    reports.push_back(settle(started, Gradients::kKept));
  }
  if (probed) {
    const StepReport& report = reports.back();
    probed_ = probe_->end(report.step, report.scale, report.applied, report.learning_rate);
  }
  if (curved) reports.back().curvature = curvature_.after(reports.back(), prescale_);
  if (compares && reports.back().applied) {
    const double norm = reports.back().grad_norm;
    const int64_t micro_batches = session_.ranks() * session_.micro_batches();
    reports.back().gradient_noise = gradient_noise_of(squares, norm * norm, micro_batches);
  }
  if (examined) integrity_.after_step(reports.back().step);
  return reports;
}

std::vector<StepReport> TrainStep::finish() {
  std::vector<StepReport> reports;
  if (pending_) reports.push_back(settle(*std::exchange(pending_, std::nullopt), Gradients::kKept));
  return reports;
}

bool TrainStep::is_curvature_due(int64_t step) const {
  const AdaptiveOptions& options = session_.config.precision_adaptive.options;
  return options.curvature > 0.0 && step > 0 && step % options.curvature_interval == 0;
}

bool TrainStep::is_noise_due(int64_t step) const {
  const AdaptiveOptions& options = session_.config.precision_adaptive.options;
  return options.gradient_noise > 0.0 && step > 0 && step % options.noise_interval == 0;
}

double TrainStep::sum_of_squared_norms(int64_t step) {
  const Range range(RangeKind::kPhase, "calibrate");
  work_.load(step);
  const int64_t tokens = work_.count_global_tokens();
  const float scale = session_.scaler.current_scale();
  work_.set_loss_gradient(loss_gradient_of(scale, tokens));
  const double factor = static_cast<double>(scale) * prescale_;  // of the gradients
  return work_.sum_of_squared_norms() / (factor * factor);
}

bool TrainStep::runs_ahead() const {
  // On the CPU every call has finished when it returns. Adaptive clipping depends on the norm of the step before.
  return session_.runtime.backend->device().kind != Device::Kind::kCpu &&
         session_.config.optimizer.clip.kind != ClipOptions::Kind::kAdaptive;
}

TrainStep::Pending TrainStep::start(int64_t step) {
  const Range range(RangeKind::kPhase, "step");
  calibrate(step);
  Session& s = session_;
  s.faults.begin_step(step);
  Backend& backend = *s.runtime.backend;
  Pending started;
  started.started = Clock::now();
  StepReport& report = started.report;
  report.step = step;
  work_.load(step);
  report.tokens = work_.count_global_tokens();
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
  started.watched.loss_limit = started.limits.loss * static_cast<double>(report.tokens);
  started.watched.norm_limit = started.limits.norm;
  verdicts_.plan(s.spikes.holds_back() ? started.watched : plan);
  started.loss_gradient = loss_gradient_of(report.scale, report.tokens);
  work_.set_loss_gradient(started.loss_gradient);
  queue(step, is_probed(step) ? probe_ : nullptr);
  backend.copy(verdicts_.decision(), decision_slot(step), *s.runtime.stream);
  started.decided = s.runtime.stream->record();
  return started;
}

double TrainStep::loss_gradient_of(float scale, int64_t tokens) const {
  return static_cast<double>(scale) * prescale_ / static_cast<double>(tokens);
}

void TrainStep::calibrate(int64_t step) {
  Session& s = session_;
  DelayedScales& scales = *s.runtime.delayed_scales;
  if (scales.calibrated() || calibrated_for_ == step) return;
  calibrated_for_ = step;
  const Range range(RangeKind::kPhase, "calibrate");
  scales.begin_calibration();
  work_.load(step);
  work_.set_loss_gradient(loss_gradient_of(s.scaler.current_scale(), work_.count_global_tokens()));
  work_.run();
  s.sharded.optimizer.record_amaxes();
  s.amaxes.run({});
  scales.end_calibration();
}

void TrainStep::queue(int64_t step, RunProbe* probe) {
  Session& s = session_;
  const bool examined = integrity_.is_due(step);
  const auto run_again = [this, &s] {
    s.runtime.delayed_scales->forget_records();
    work_.run();
  };
  const auto body = [&] {
    if (probe != nullptr) probe->begin();
    work_.run({.observer = probe != nullptr ? probe->products() : nullptr});
    if (examined) integrity_.after_passes(step, run_again);
    if (probe != nullptr) probe->gradients_ready();
    {
      const Range range(RangeKind::kPhase, "decide");
      verdicts_.decide(work_.losses(), s.sharded.reducer, s.sharded.optimizer.faults());
      s.sharded.optimizer.record_amaxes();
      s.amaxes.run(verdicts_.decision());
    }
    const Range range(RangeKind::kPhase, "update");
    if (probe != nullptr) probe->before_update();
    s.sharded.optimizer.step(s.sharded.reducer, verdicts_.control());
    if (probe != nullptr) probe->after_update();
  };
  if (s.runtime.delayed_scales->calibrated()) ++queued_;  // before, weights may travel in another form
  if (!s.captures_steps() || queued_ <= 1 || probe != nullptr || examined) return body();
  if (!captured_) {
    s.sharded.buckets.bump_versions();  // so that the casts of the weights are part of it
    captured_ = s.runtime.backend->capture(*s.runtime.stream, body);
  }
  const Range range(RangeKind::kPhase, "replay");
  captured_->launch();
  s.communicator.watch_captured(*s.runtime.stream);
  s.sharded.buckets.bump_versions();
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
  report.loss = decision.verdict.loss_sum / static_cast<double>(report.tokens);
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
    explain(report, step.loss_gradient, gradients);
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

void TrainStep::explain(StepReport& report, double loss_gradient, Gradients gradients) {
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
    s.runtime.stream->synchronize();  // the step behind has run: its gradients give way
    work_.load(report.step);
    work_.set_loss_gradient(loss_gradient);
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
