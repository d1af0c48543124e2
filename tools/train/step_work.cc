#include "tools/train/step_work.h"

#include <cstring>

namespace mantissa {
namespace {

// A culprit as it travels between ranks.
struct Culprit {
  int32_t found = 0;
  char text[252] = {};
};

}  // namespace

StepWork::StepWork(Session& session) : session_(session) {
  const int64_t count = session.config.train.micro_batch * session.config.model.context;
  batches_.resize(static_cast<size_t>(session.micro_batches()));
  for (MicroBatch& batch : batches_) {
    batch.tokens.resize(static_cast<size_t>(count));
    batch.targets.resize(static_cast<size_t>(count));
  }
  Backend& backend = *session.runtime.backend;
  tokens_ = backend.make_tensor(DType::kI32, {count}, "input tokens");
  targets_ = backend.make_tensor(DType::kI32, {count}, "target tokens");
  losses_ = backend.make_tensor(DType::kF32, {session.micro_batches()}, "losses");
}

void StepWork::load(int64_t step) {
  step_ = step;
  const int64_t micro_batch = session_.config.train.micro_batch;
  const int64_t ranks = session_.ranks(), rank = session_.communicator.rank();
  const uint64_t step_begin = static_cast<uint64_t>(step * session_.config.train.global_batch);
  for (size_t index = 0; index < batches_.size(); ++index) {
    MicroBatch& batch = batches_[index];
    batch.first_sample = static_cast<uint32_t>((static_cast<int64_t>(index) * ranks + rank) * micro_batch);
    session_.data.train(step_begin + batch.first_sample, batch.tokens, batch.targets);
  }
}

int64_t StepWork::count_global_tokens() const {
  const Config& config = session_.config;
  // Every position of a sample has a token that follows it: there is nothing to ask the other ranks.
  if (session_.runtime.model->objective() == Objective::kNextToken) {
    return config.train.global_batch * config.model.context;
  }
  int64_t mine = 0, all = 0;
  for (const MicroBatch& batch : batches_) mine += count_targets(batch.targets);
  for (const int64_t tokens : all_gather_records(session_.communicator, mine)) all += tokens;
  return all;
}

void StepWork::run(float seed) {
  Session& s = session_;
  Backend& backend = *s.runtime.backend;
  s.runtime.parameters.forget_gradients();
  for (size_t index = 0; index < batches_.size(); ++index) {
    TapeOptions options = tape_options(batches_[index]);
    if (index + 1 == batches_.size()) {  // gradients are complete after the last micro-batch: reduce as they land
      s.reducer.begin();
      options.gradient_ready = [&s, this](Parameter& parameter) {
        s.injection.on_gradient(step_, parameter);
        s.reducer.ready(parameter);
      };
      options.between_nodes = [&s] { s.reducer.progress(); };
    }
    Tape tape = s.runtime.make_tape(std::move(options));
    const LossOutput output = forward(tape, batches_[index]);
    backend.copy(output.sum.value, losses_.slice(static_cast<int64_t>(index), 1), *s.runtime.stream);
    tape.backward(output.sum, seed);
  }
  s.injection.require_injected(step_);
  s.reducer.finish();
  s.runtime.arena->rewind();
}

LossOutput StepWork::forward(Tape& tape, const MicroBatch& batch) {
  ModelRuntime& runtime = session_.runtime;
  runtime.backend->upload(batch.tokens.data(), tokens_, *runtime.stream);
  runtime.backend->upload(batch.targets.data(), targets_, *runtime.stream);
  return runtime.model->loss(tape, tokens_, targets_, session_.config.model.context);
}

TapeOptions StepWork::tape_options(const MicroBatch& batch) const {
  return {.random = {.seed = session_.config.train.seed,
                     .step = static_cast<uint32_t>(step_),
                     .first_sample = batch.first_sample},
          .gradient_ready = {},
          .between_nodes = {},
          .after_op = session_.injection.on_output(step_)};
}

std::string StepWork::find_culprit() {
  Culprit mine;
  for (size_t index = 0; index < batches_.size() && !mine.found; ++index) {
    TapeOptions options = tape_options(batches_[index]);
    options.check_outputs = true;
    Tape tape = session_.runtime.make_tape(std::move(options));
    forward(tape, batches_[index]);
    if (const auto& bad = tape.first_non_finite()) {
      mine.found = 1;
      const std::string text = fmt::format(
          "op {} of layer '{}' made {} NaN and {} Inf in its output {}, first at element {} (micro-batch {})", bad->op,
          bad->layer, bad->stats.nan_count, bad->stats.inf_count, bad->shape, bad->stats.first_bad, index);
      std::strncpy(mine.text, text.c_str(), sizeof(mine.text) - 1);
    }
  }
  const auto all = all_gather_records(session_.communicator, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].found) return fmt::format("{} on rank {}", all[rank].text, rank);
  }
  return "every op's output was finite when the batch was run again; the loss itself overflowed in its sum";
}

}  // namespace mantissa
