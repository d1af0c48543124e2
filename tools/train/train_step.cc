#include "tools/train/train_step.h"

#include <chrono>
#include <cmath>
#include <cstring>

namespace mantissa {
namespace {

// A culprit as it travels between ranks.
struct Culprit {
  int32_t found = 0;
  char text[252] = {};
};

}  // namespace

TrainStep::TrainStep(Session& session)
    : session_(session), boost_(std::ldexp(1.0, gradient_boost_log2(session.ranks(), session.micro_batches()))) {
  const int64_t count = session.config.train.micro_batch * session.config.model.context;
  batches_.resize(static_cast<size_t>(session.micro_batches()));
  for (MicroBatch& batch : batches_) {
    batch.tokens.resize(static_cast<size_t>(count));
    batch.targets.resize(static_cast<size_t>(count));
  }
  tokens_ = session.runtime.backend->make_tensor(DType::kI32, {count}, "input tokens");
  targets_ = session.runtime.backend->make_tensor(DType::kI32, {count}, "target tokens");
}

StepReport TrainStep::run() {
  const auto start = std::chrono::steady_clock::now();
  Session& s = session_;
  StepReport report;
  report.step = s.next_step;
  load_batches(report.step);
  LocalLoss loss;
  for (const MicroBatch& batch : batches_) loss.tokens += count_targets(batch.targets);
  for (const int64_t tokens : all_gather_records(s.communicator, loss.tokens)) report.tokens += tokens;

  report.scale = s.scaler.scale();
  loss.sum = forward_backward(report.step, report.tokens, report.scale).sum;
  s.injection.require_injected(report.step);
  s.reducer.finish();
  report.verdict = s.verdicts.reduce(loss, s.reducer, s.buckets.layout());
  report.loss = report.verdict.loss_sum / static_cast<double>(report.tokens);
  s.runtime.arena->rewind();

  const double unscale = static_cast<double>(s.scaler.unscale()) / boost_;
  report.grad_norm = std::sqrt(report.verdict.sum_squares) * unscale;
  // A scale without a floor can become so small that its inverse, and with it the unscaled gradient, is not finite.
  const bool gradients_usable = report.verdict.gradients_finite && std::isfinite(report.grad_norm);
  const StepOutcome outcome = !report.verdict.loss_finite ? StepOutcome::kLossFault
                              : !gradients_usable         ? StepOutcome::kGradientOverflow
                                                          : StepOutcome::kClean;
  report.applied = s.scaler.step(outcome);
  report.learning_rate = learning_rate(s.config.optimizer.schedule, s.optimizer.applied_steps());
  if (report.applied) {
    report.clip_factor = s.clipper.factor(report.grad_norm);
    s.clipper.record(report.grad_norm);
  } else if (outcome == StepOutcome::kLossFault) {
    report.culprit = find_culprit(report.step);
  } else if (!report.verdict.gradients_finite) {
    report.offender = s.verdicts.find_offender(report.verdict, s.reducer, s.buckets);
  }
  s.optimizer.step(s.reducer, {.decision = report.applied ? StepDecision::kApply : StepDecision::kSkip,
                               .gradient_multiplier = unscale * report.clip_factor,
                               .learning_rate = report.learning_rate});
  report.event = s.scaler.update();
  report.next_scale = s.scaler.current_scale();
  ++s.next_step;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

void TrainStep::load_batches(int64_t step) {
  const int64_t micro_batch = session_.config.train.micro_batch;
  const int64_t ranks = session_.ranks(), rank = session_.communicator.rank();
  const uint64_t step_begin = static_cast<uint64_t>(step * session_.config.train.global_batch);
  for (size_t index = 0; index < batches_.size(); ++index) {
    MicroBatch& batch = batches_[index];
    batch.first_sample = static_cast<uint32_t>((static_cast<int64_t>(index) * ranks + rank) * micro_batch);
    session_.data.train(step_begin + batch.first_sample, batch.tokens, batch.targets);
  }
}

LocalLoss TrainStep::forward_backward(int64_t step, int64_t global_tokens, float scale) {
  Session& s = session_;
  LocalLoss loss;
  const float seed = static_cast<float>(static_cast<double>(scale) * boost_ / static_cast<double>(global_tokens));
  s.runtime.parameters.forget_gradients();
  for (size_t index = 0; index < batches_.size(); ++index) {
    TapeOptions options = tape_options(step, batches_[index]);
    if (index + 1 == batches_.size()) {  // gradients are complete after the last micro-batch: reduce as they land
      s.reducer.begin();
      options.gradient_ready = [&s, step](Parameter& parameter) {
        s.injection.on_gradient(step, parameter);
        s.reducer.ready(parameter);
      };
      options.between_nodes = [&s] { s.reducer.progress(); };
    }
    Tape tape = s.runtime.make_tape(std::move(options));
    const LossOutput output = s.runtime.model->loss(tape, upload(tokens_, batches_[index].tokens),
                                                    upload(targets_, batches_[index].targets), s.config.model.context);
    float sum = 0.0f;
    s.runtime.backend->download(output.sum.value, &sum, *s.runtime.stream);
    loss.sum += static_cast<double>(sum);
    tape.backward(output.sum, seed);
  }
  return loss;
}

TapeOptions TrainStep::tape_options(int64_t step, const MicroBatch& batch) const {
  return {.random = {.seed = session_.config.train.seed,
                     .step = static_cast<uint32_t>(step),
                     .first_sample = batch.first_sample},
          .gradient_ready = {},
          .between_nodes = {},
          .after_op = session_.injection.on_output(step)};
}

Tensor TrainStep::upload(const Tensor& device, const std::vector<int32_t>& host) {
  session_.runtime.backend->upload(host.data(), device, *session_.runtime.stream);
  return device;
}

std::string TrainStep::find_culprit(int64_t step) {
  Session& s = session_;
  Culprit mine;
  for (size_t index = 0; index < batches_.size() && !mine.found; ++index) {
    TapeOptions options = tape_options(step, batches_[index]);
    options.check_outputs = true;
    Tape tape = s.runtime.make_tape(std::move(options));
    s.runtime.model->loss(tape, upload(tokens_, batches_[index].tokens), upload(targets_, batches_[index].targets),
                          s.config.model.context);
    if (const auto& bad = tape.first_non_finite()) {
      mine.found = 1;
      const std::string text = fmt::format(
          "op {} of layer '{}' made {} NaN and {} Inf in its output {}, first at element {} (micro-batch {})", bad->op,
          bad->layer, bad->stats.nan_count, bad->stats.inf_count, bad->shape, bad->stats.first_bad, index);
      std::strncpy(mine.text, text.c_str(), sizeof(mine.text) - 1);
    }
  }
  const auto all = all_gather_records(s.communicator, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].found) return fmt::format("{} on rank {}", all[rank].text, rank);
  }
  return "every op's output was finite when the batch was run again; the loss itself overflowed in its sum";
}

std::string StepReport::skip_reason(const ParameterSet& parameters) const {
  if (applied) return "";
  if (culprit) return fmt::format("the loss is not finite: {}", *culprit);
  if (!offender)
    return fmt::format("the gradient is not finite after unscaling: the loss scale {:g} is too small", scale);
  const char* kind = offender->is_nan ? "NaN" : "Inf";
  const Parameter& parameter = parameters[offender->parameter];
  if (offender->rank < 0) {
    return fmt::format("gradient {}[{}] is {} after summing over ranks, each rank's own was finite", parameter.name,
                       offender->element, kind);
  }
  return fmt::format("gradient {}[{}] is {} on rank {}", parameter.name, offender->element, kind, offender->rank);
}

}  // namespace mantissa
