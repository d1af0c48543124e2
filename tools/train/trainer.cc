#include "tools/train/trainer.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>

#include "core/base/log.h"
#include "core/profile/range.h"
#include "tools/train/generator.h"
#include "tools/train/memory_table.h"
#include "tools/train/precision_table.h"
#include "tools/train/speed_measurement.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

bool due(int64_t interval, int64_t step) { return interval > 0 && step % interval == 0; }

std::unique_ptr<ProbeRecorder> make_probes(Session& session) {
  return session.config.probe.enabled ? std::make_unique<ProbeRecorder>(session) : nullptr;
}

}  // namespace

Trainer::Trainer(Session& session, TrainingCheckpoints& checkpoints, const TrainerStart& start)
    : session_(session),
      checkpoints_(checkpoints),
      probes_(make_probes(session)),
      step_(session, probes_ ? &probes_->probe() : nullptr),
      evaluation_(session),
      fallback_(fallback_from(session.config, start.state)),
      adaptive_(start.adaptive) {
  if (const nlohmann::json& state = start.state; !state.is_null()) {
    statistics_.restore(state.at("statistics"));
    faults_in_a_row_ = state.at("faults_in_a_row");
    if (!state.at("first_validation_loss").is_null()) first_validation_loss_ = state.at("first_validation_loss");
    if (!start.by_switch) saved_step_ = session.next_step;
  }
  speed_ = measure_speed_context(session);
  if (session.profiler) profile_.emplace(session, session.config.train.run_dir);
  if (leader()) announce(start);
}

void Trainer::announce(const TrainerStart& start) {
  metrics_.emplace(session_.config.train.run_dir + "/metrics.jsonl", session_.next_step);
  if (start.by_switch) {
    log_info("step {}: {} changes the precision from the next step on:\n  {}", session_.next_step,
             start.by_switch->cause, fmt::join(start.by_switch->changes, "\n  "));
    nlohmann::json record = {{"event", "precision"},
                             {"step", session_.next_step},
                             {"cause", start.by_switch->cause},
                             {"changes", start.by_switch->changes}};
    record.update(start.by_switch->figures);
    metrics_->write(record);
  }
  metrics_->write({{"event", "start"},
                   {"next_step", session_.next_step + 1},
                   {"ranks", session_.ranks()},
                   {"flops_per_token", training_flops_per_token(session_.config.model)},
                   {"gemm_peak_flops", known(speed_.gemm_peak_flops)},
                   {"datasheet_flops", known(speed_.datasheet_flops)}});
  const auto rate = [](double flops) {
    return flops > 0.0 ? fmt::format("{:.2f} TFLOP/s", flops * 1e-12) : std::string("not known");
  };
  if (const std::string rounding = rounding_summary(session_.config, *session_.runtime.backend); !rounding.empty()) {
    log_info("{}", rounding);
  }
  if (const std::string products = fp32_products_summary(session_.config); !products.empty()) {
    log_info("{}", products);
  }
  log_info("{} GEMM peak of all ranks: measured {}, by data sheet {}", session_.config.precision.compute,
           rate(speed_.gemm_peak_flops), rate(speed_.datasheet_flops));
}

int64_t Trainer::last_step(const Config& config) {
  return config.train.stop_at_step > 0 ? std::min(config.train.stop_at_step, config.train.steps) : config.train.steps;
}

std::optional<PrecisionSwitch> Trainer::run(int64_t end) {
  const Config& config = session_.config;
  const int64_t last = last_step(config);
  if (session_.next_step < end) step_.calibrate();
  if (session_.next_step < end && session_.next_step == 0) evaluate();
  while (step_.next_to_start() < end && !switch_) {
    watch_returns(step_.next_to_start());
    watch_level(step_.next_to_start());
    if (switch_) break;  // before the step
    take(step_.run());
    const int64_t started = step_.next_to_start();
    const bool evaluation_due = due(config.train.eval_interval, started) && started < last;
    const bool sample_due = due(config.train.sample_interval, started) && started < last;
    const bool save_due = due(config.checkpoint.interval, started) && started < last;  // finish() saves behind that
    if (!evaluation_due && !sample_due && !save_due) continue;
    take(step_.finish());
    if (evaluation_due) watch_evaluation(evaluate());
    if (sample_due) sample();
    if (save_due) save();
  }
  take(step_.finish());
  return std::exchange(switch_, std::nullopt);
}

void Trainer::finish() {
  const std::optional<double> loss = evaluate();
  if (saved_step_ != session_.next_step) watch_evaluation(loss);  // else it was, before the checkpoint
  const bool saved = saved_step_ == session_.next_step || save();
  sample();
  if (leader()) summarise();
  leave();  // last, since what a profile measures takes memory
  if (!saved) {
    throw CheckpointError(fmt::format("the state after step {} could not be saved; older checkpoints are in {}",
                                      session_.next_step, checkpoint_root(session_.config.train.run_dir)));
  }
}

void Trainer::leave() {
  if (probes_ && leader()) log_info("{}", probes_->summary());
  report_profile();
}

void Trainer::take(const std::vector<StepReport>& steps) {
  for (const StepReport& step : steps) {
    report(step);
    if (probes_) probes_->count(step);
  }
  if (const auto probed = step_.take_probed()) {
    probes_->record(*probed);
    watch_underflow(*probed);
  }
  for (const StepReport& step : steps) {
    watch_overflows(step);
    watch_signals(step);
    watch_faults(step);
  }
  if (profile_) profile_->watch();
}

void Trainer::report(const StepReport& step) {
  if (!leader()) return;
  const std::string reason = step.skip_reason(session_.runtime.parameters);
  statistics_.add(step, reason);
  const size_t memory = session_.runtime.backend->memory_use().held_bytes;
  nlohmann::json record = step_json(step, speed_, memory);
  if (!step.applied) {
    record["skip_reason"] = reason;
    const std::string scale = step.next_scale != step.scale
                                  ? fmt::format("scale {:g} -> {:g}", step.scale, step.next_scale)
                                  : fmt::format("scale {:g} ({})", step.scale, name(step.event));
    log_warn("step {} SKIPPED: {}; {}; weights unchanged on all ranks", step.step + 1, reason, scale);
  } else if (step.event == ScalerEvent::kGrew) {
    log_info("step {}: loss scale {:g} -> {:g} after {} clean steps", step.step + 1, step.scale, step.next_scale,
             session_.scaler.config().growth_interval);
  }
  metrics_->write(record);
  const TrainConfig& train = session_.config.train;
  if (due(train.log_interval, step.step + 1) || step.step == 0 || step.step + 1 == train.steps) {
    log_info("{}", step_line(step, train.steps, speed_, memory));
  }
}

void Trainer::watch_faults(const StepReport& step) {
  // Without a scale to lower, non-finite gradients are as incurable as a non-finite loss. In another precision they may
  // be none.
  faults_in_a_row_ = is_fault(step.event) && !switch_ ? faults_in_a_row_ + 1 : 0;
  if (faults_in_a_row_ < session_.config.faults.max_consecutive) return;
  const int faults = std::exchange(faults_in_a_row_, 0);
  save();  // the weights are those of the last step that was applied
  if (leader()) summarise();
  leave();
  throw FaultError(fmt::format(
      "stopped after {} faults in a row, the last in step {}: {}. Starting again goes on behind that step; {}", faults,
      step.step + 1, step.skip_reason(session_.runtime.parameters), step.advice(session_.scaler.config())));
}

std::optional<double> Trainer::evaluate() {
  if (!evaluation_.enabled()) return std::nullopt;
  const Range range(RangeKind::kPhase, "evaluate");
  const double loss = evaluation_.run();
  (first_validation_loss_ ? last_validation_loss_ : first_validation_loss_) = loss;
  if (!leader()) return loss;
  log_info("step {} | validation loss {:.4f} nats a token ({:.3f} bits), perplexity {:.3f}", session_.next_step, loss,
           loss / std::log(2.0), std::exp(loss));
  metrics_->write({{"event", "validation"}, {"step", session_.next_step}, {"loss", number(loss)}});
  return loss;
}

void Trainer::sample() {
  const Config& config = session_.config;
  if (!leader() || !draws_samples(config, *session_.runtime.model)) return;
  const Range range(RangeKind::kPhase, "sample");
  std::string text;
  Generator(session_.runtime, config.model)
      .run(byte_tokens(config.train.sample_prompt), {.tokens = config.train.sample_tokens, .seed = config.train.seed},
           [&text](int32_t token) { text += byte_text(token); });
  log_info("step {} | sample after {:?}:\n{}", session_.next_step, config.train.sample_prompt, text);
}

nlohmann::json Trainer::state() const {
  nlohmann::json state = {
      {"statistics", statistics_.state()},
      {"faults_in_a_row", faults_in_a_row_},
      {"fallback", to_json(fallback_.state())},
      {"first_validation_loss", first_validation_loss_ ? number(*first_validation_loss_) : nullptr}};
  if (adaptive_) state["adaptive"] = to_json(adaptive_->state());
  return state;
}

bool Trainer::save() {
  const Range range(RangeKind::kPhase, "checkpoint");
  if (!checkpoints_.save(state())) return false;
  saved_step_ = session_.next_step;
  if (leader()) {
    log_info("step {} | checkpoint saved to {}", session_.next_step, checkpoint_root(session_.config.train.run_dir));
    metrics_->write({{"event", "checkpoint"}, {"step", session_.next_step}});
  }
  return true;
}

void Trainer::report_profile() {
  if (!profile_) return;
  const std::string text = profile_->finish();
  if (leader()) log_info("profile: {}", text);
}

void Trainer::summarise() const {
  const MemoryTable predicted =
      predict_memory_table(session_.config, session_.ranks(), expected_path(session_.config, session_.communicator),
                           session_.runtime.backend->fp8_gemm_support());
  const MemoryTable measured = measure_memory_table(session_);
  log_info("memory of rank 0, predicted and measured:{}", to_text(predicted, &measured));
  log_info("statistics:{}", statistics_.to_text(session_.runtime.backend->memory_use().peak_bytes, speed_));
  if (first_validation_loss_ && last_validation_loss_) {
    log_info("validation loss {:.4f} -> {:.4f} nats a token", *first_validation_loss_, *last_validation_loss_);
  }
  log_info("checkpoints in {}, metrics in {}/metrics.jsonl", checkpoint_root(session_.config.train.run_dir),
           session_.config.train.run_dir);
}

}  // namespace mantissa
