#include "tools/train/run_log.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "comm/sharded_state.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/profile/range.h"
#include "tools/model/generate/generator.h"
#include "tools/run/guard/watchdog.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/precision_table.h"

namespace mantissa {
namespace {

// A rate or share that is 0 is not known.
nlohmann::json known(double value) { return value > 0.0 ? nlohmann::json(value) : nlohmann::json(nullptr); }

// A text too long for the line after "step 12 SKIPPED: " gets a line for each clause.
std::string in_clauses(std::string text) {
  constexpr size_t kBefore = std::string_view("warning: [rank 0] step 100000 SKIPPED: ").size();
  if (kBefore + columns_of(text) <= kTextColumns) return text;
  for (size_t at = text.find("; "); at != std::string::npos; at = text.find("; ", at + 1)) text.replace(at, 2, ";\n  ");
  return text;
}

}  // namespace

RunLog::RunLog(Session& session, const Start& start, const BlackBox& box, Heartbeat* heartbeat)
    : config_(session.config),
      box_(box),
      speed_(measure_speed_context(session.config, session.device, session.runtime, session.communicator)),
      heartbeat_(heartbeat),
      recorded_seconds_(box.work_seconds(kPhases)) {
  if (session.communicator.rank() == 0) begin(session, start);
}

void RunLog::log_switch(const Session& session, const PrecisionSwitch& by_switch) {
  log_info("step {}: the precision changes with the next step, by {}:\n  {}", session.next_step, by_switch.cause,
           fmt::join(by_switch.changes, "\n  "));
  nlohmann::json record = {
      {"event", "precision"}, {"step", session.next_step}, {"cause", by_switch.cause}, {"changes", by_switch.changes}};
  if (by_switch.to_level >= 0) {
    nlohmann::json signals = nlohmann::json::array();
    for (const BadSignal& bad : by_switch.signals) signals.push_back(bad);
    record.update({{"from_level", by_switch.from_level}, {"to_level", by_switch.to_level}, {"signals", signals}});
  }
  records_->write(record);
}

void RunLog::begin(const Session& session, const Start& start) {
  records_.emplace(config_, start.kept_steps());
  if (start.by_switch) log_switch(session, *start.by_switch);
  records_->write({{"event", "start"},
                   {"next_step", session.next_step + 1},
                   {"ranks", session.ranks()},
                   {"flops_per_token", training_flops_per_token(config_.model)},
                   {"gemm_peak_flops", known(speed_.gemm_peak_flops)},
                   {"datasheet_flops", known(speed_.datasheet_flops)}});
  const auto rate = [](double flops) {
    return flops > 0.0 ? fmt::format("{:.3g} TFLOP/s", flops * 1e-12) : std::string("not known");
  };
  for (const std::string& line :
       {rounding_summary(config_, *session.runtime.backend), fp32_products_summary(config_)}) {
    if (!line.empty()) log_info("{}", wrapped(line));
  }
  log_info("{} peak of all ranks: {}; by data sheet: {}", config_.precision.compute,
           speed_.gemm_peak_flops > 0.0 ? "measured " + rate(speed_.gemm_peak_flops) : "not measured",
           rate(speed_.datasheet_flops));
  if (start.rollback) log_rollback(session, *start.rollback);
}

void RunLog::after_step(Trainer& trainer, const StepReport& step) {
  ++steps_;
  if (!trainer.is_leader()) return;
  const Session& session = trainer.session();
  const std::string reason = step.skip_reason(session.runtime.parameters);
  trainer.state().statistics.add(step, reason);
  const StepFigures figures{.report = step,
                            .speed = speed_,
                            .memory_bytes = session.runtime.backend->memory_use().held_bytes,
                            .skip_reason = reason};
  const nlohmann::json record = step_json(figures);  // of the peak that was known in the step
  if (!step.applied) {
    const std::string scale = step.next_scale != step.scale
                                  ? fmt::format("scale {:g} -> {:g}", step.scale, step.next_scale)
                                  : fmt::format("scale {:g} ({})", step.scale, name(step.event));
    log_warn("step {} SKIPPED: {};\n  {}weights unchanged on all ranks", step.step + 1, in_clauses(reason),
             step.spike || step.lacks_targets() ? "" : scale + "; ");
  } else if (step.event == ScalerEvent::kGrew) {
    log_info("step {}: loss scale {:g} -> {:g} after {} clean steps", step.step + 1, step.scale, step.next_scale,
             session.scaler.config().growth_interval);
  }
  if (const double before = speed_.gemm_peak_flops; step.applied && peak_watch_.add(step.seconds, speed_)) {
    log_info("step {}: MFU is now of {:.3g} TFLOP/s, which steps reach: that is more than the measured peak of {:.3g}",
             step.step + 1, speed_.gemm_peak_flops * 1e-12, before * 1e-12);
    records_->write({{"event", "peak"}, {"step", step.step + 1}, {"gemm_peak_flops", speed_.gemm_peak_flops}});
  }
  log_spike(step, trainer.state().spikes_in_a_row);
  records_->write(record);
  if (step.probed) records_->write(*step.probed);
  update_figures(figures);
  const TrainConfig& train = config_.train;
  if (is_due(train.log_interval, step.step + 1) || step.step == 0 || step.step + 1 == train.steps) {
    log_info("{}", step_line(figures, train.steps, heartbeat_->times()));
  }
}

// A warning at the start of a row of spikes, for applied steps: skipped steps have a line each.
void RunLog::log_spike(const StepReport& step, int spikes_before) const {
  if (step.spike && step.applied && spikes_before == 0) {
    log_warn("step {}: a spike: {}; stop_rules.action only warns", step.step + 1, *step.spike);
  } else if (!step.spike && step.applied && spikes_before > 1) {
    log_info("step {}: no spike any more, after {} in a row", step.step + 1, spikes_before);
  }
}

void RunLog::log_rollback(const Session& session, const Rollback& rollback) {
  const int64_t batches = rollback.changes_precision ? 0 : rollback.next_batch - session.next_step;
  if (rollback.changes_precision) {
    log_warn("rolled back from step {} to step {}, whose steps are trained again: {}", rollback.from_step,
             session.next_step, rollback.cause);
  } else {
    log_warn(
        "rolled back from step {} to the checkpoint of step {} (rollback {} of {});\n  it goes on with global batch "
        "{}: {}",
        rollback.from_step, session.next_step, rollback.count, config_.stop_rules.max_rollbacks,
        rollback.next_batch + 1, rollback.cause);
  }
  records_->write({{"event", "rollback"},
                   {"step", session.next_step},
                   {"from_step", rollback.from_step},
                   {"skipped_batches", batches},
                   {"rollbacks", rollback.count},
                   {"cause", rollback.cause}});
}

void RunLog::update_figures(const StepFigures& figures) {
  heartbeat_->step_done(figures.report.step + 1);
  RunFigures& newest = heartbeat_->figures();
  for (const Metric& row : metrics()) {
    if (row.of_step != nullptr && row.prometheus.name != nullptr) newest.set(row.name, value_of(row, figures));
  }
  if (!figures.report.applied) newest.set("skipped_steps", *newest["skipped_steps"] + 1.0);
  heartbeat_->beat();
}

void RunLog::after_validation(Trainer& trainer, double loss) {
  auto& first = trainer.state().first_validation_loss;
  (first ? last_validation_loss_ : first) = loss;
  if (!trainer.is_leader()) return;
  const int64_t step = trainer.session().next_step;
  log_info("step {} | validation loss {:.4f} nats per token ({:.3f} bits), perplexity {:.3f}", step, loss,
           loss / std::log(2.0), std::exp(loss));
  records_->write({{"event", "validation"}, {"step", step}, {"loss", loss}});
  heartbeat_->figures().set("validation_loss", loss);
  heartbeat_->beat();
}

void RunLog::evaluated(const Session& session, const std::string& name, const std::string& text,
                       const nlohmann::json& figures) {
  if (!records_) return;
  log_info("step {} | {}: {}", session.next_step, name, text);
  nlohmann::json record = figures;
  record.update({{"event", "evaluation"}, {"step", session.next_step}, {"name", name}});
  records_->write(record);
}

void RunLog::at_end(Trainer& trainer, Ending ending) {
  if (ending == Ending::kDone) {
    hash(trainer.session());
    sample(trainer.session());
  }
  if (ending == Ending::kStopped && trainer.is_leader()) {
    const Verdict& verdict = *trainer.stopped_by();
    const std::string cause = StopRequest::describe(verdict.stop_request);
    const int64_t step = trainer.session().next_step;
    log_warn("stopped after step {} of {}: {}, on rank {}; start the same command again to continue", step,
             config_.train.steps, cause, verdict.stop_rank);
    records_->write({{"event", "stop"}, {"step", step}, {"cause", cause}, {"rank", verdict.stop_rank}});
  }
  if (!trainer.is_leader()) return;
  records_->write(ending);
  summarise(trainer);
}

void RunLog::saved(const Session& session) {
  if (!records_) return;
  log_info("step {} | checkpoint saved to {}", session.next_step, checkpoint_root(config_.train.run_dir));
  records_->write({{"event", "checkpoint"}, {"step", session.next_step}});
  record_phases(session);
  heartbeat_->figures().set("last_checkpoint_step", static_cast<double>(session.next_step));
  heartbeat_->beat();
}

void RunLog::record_phases(const Session& session) {
  const auto all = box_.work_seconds(kPhases);
  const auto now = std::chrono::steady_clock::now();
  nlohmann::json seconds;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] > recorded_seconds_[i]) seconds[std::string(kPhases[i])] = all[i] - recorded_seconds_[i];
  }
  records_->write({{"event", "phases"},
                   {"step", session.next_step},
                   {"wall_seconds", std::chrono::duration<double>(now - recorded_at_).count()},
                   {"seconds", seconds}});
  recorded_seconds_ = all;
  recorded_at_ = now;
}

void RunLog::sample(Session& session) try {
  if (!records_ || !draws_samples(config_, *session.runtime.model)) return;
  const Range range(RangeKind::kPhase, "sample");
  std::string text;
  int64_t count = 0;
  const bool is_first = !codec_;
  if (is_first) codec_ = std::make_unique<TextCodec>(config_.train.run_dir, config_);
  const std::vector<int32_t> prompt = codec_->encode(config_.train.sample_prompt, {.add_special_tokens = true});
  const int64_t out = std::ssize(prompt) - config_.model.context;
  if (is_first && out > 0) {
    log_warn("train.sample_prompt: it has {} tokens, and the model's context {}: {} tokens at its start are left out",
             prompt.size(), config_.model.context, out);
  }
  TextDecoder decoder(*codec_);
  Generator(session.runtime, config_.model, {.vocab = codec_->vocab()})
      .run(prompt, SamplingOptions{.tokens = config_.train.sample_tokens, .seed = config_.train.seed},
           [&](int32_t token) {
             text += decoder.add(token);
             constexpr int64_t kTokensOfASign = 32;
             if (++count % kTokensOfASign == 0) report_progress();
             return Continue::kYes;
           });
  text += decoder.finish();
  log_info("step {} | sample after {:?}:\n{}", session.next_step, config_.train.sample_prompt, legible(text));
  records_->write({{"event", "sample"},
                   {"step", session.next_step},
                   {"prompt", legible(config_.train.sample_prompt)},
                   {"text", legible(text)}});
} catch (const FaultError& error) {  // other ranks go on, and the training has limits of its own for faults
  log_warn("step {} | no sample: {}", session.next_step, error.what());
}

void RunLog::hash(const Session& session) {
  const Range range(RangeKind::kPhase, "hash");
  const StateHash hash = hash_state(session.sharded);
  if (!records_) return;
  const auto weights = fmt::format("{:016x}", hash.weights), state = fmt::format("{:016x}", hash.state);
  log_info("step {} | weights {}, with moments {}: the same on any ranks with train.lanes={}", session.next_step,
           weights, state, session.lanes());
  records_->write({{"event", "hash"}, {"step", session.next_step}, {"weights", weights}, {"state", state}});
}

void RunLog::summarise(Trainer& trainer) {
  const Session& session = trainer.session();
  const Backend& backend = *session.runtime.backend;
  const std::string &run_dir = config_.train.run_dir, memory = record_memory(session);
  log_info("statistics:{}", wrapped(trainer.state().statistics.to_text(backend.memory_use().peak_bytes, speed_)));
  if (!memory.empty()) log_info("{}", memory);
  if (const auto& first = trainer.state().first_validation_loss; first && last_validation_loss_) {
    log_info("validation loss {:.4f} -> {:.4f} nats per token{}", *first, *last_validation_loss_,
             *last_validation_loss_ < *first ? "" : ": this training did not lower it");
  }
  if (is_unsaved_) return log_info("metrics in {}/metrics.jsonl", run_dir);
  log_info("checkpoints in {}, metrics in {}/metrics.jsonl", checkpoint_root(run_dir), run_dir);
}

// A line for people, and a record. Without a step in this session, there is nothing to compare.
std::string RunLog::record_memory(const Session& session) {
  if (steps_ == 0) return "";
  const MemoryTable predicted =
      predict_memory_table(config_, session.ranks(), expected_path(config_, session.communicator),
                           session.runtime.backend->fp8_gemm_support(), session.communicator.local_size());
  const MemoryTable measured = measure_memory_table(session);
  records_->write({{"event", "memory"}, {"step", session.next_step}, {"predicted", predicted}, {"measured", measured}});
  const auto in_mib = [](size_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
  return fmt::format("tensors and buffers of rank 0: {:.1f} MiB, by prediction {:.1f} MiB ({:+.1f} %)",
                     in_mib(measured.total()), in_mib(predicted.total()),
                     100.0 * (in_mib(measured.total()) / in_mib(predicted.total()) - 1.0));
}

}  // namespace mantissa
