#include "tools/train/evaluation.h"

#include <algorithm>
#include <span>
#include <vector>

namespace mantissa {
namespace {

struct LossSum {
  double nats = 0.0;
  int64_t tokens = 0;  // non-ignored
};

}  // namespace

Evaluation::Evaluation(Session& session) : session_(session) {
  const TrainConfig& train = session.config.train;
  if (train.eval_interval == 0) return;
  sequences_ = std::min(train.eval_batches * train.global_batch, session.data.validation_windows());
  const int64_t count = train.micro_batch * session.config.model.context;
  tokens_ = session.runtime.backend->make_tensor(DType::kI32, {count}, "validation tokens");
  targets_ = session.runtime.backend->make_tensor(DType::kI32, {count}, "validation targets");
}

double Evaluation::run() {
  ModelRuntime& runtime = session_.runtime;
  const int64_t context = session_.config.model.context, block = session_.config.train.micro_batch;
  const int64_t stride = block * session_.ranks();
  LossSum mine;
  for (int64_t first = block * session_.communicator.rank(); first < sequences_; first += stride) {
    // The last micro-batch is filled up with targets that do not count: a device need not prepare another shape.
    std::vector<int32_t> tokens(static_cast<size_t>(block * context)), targets(tokens.size(), kIgnoredTarget);
    const auto count = static_cast<size_t>(std::min(block, sequences_ - first) * context);
    session_.data.validation(static_cast<uint64_t>(first), std::span(tokens).first(count),
                             std::span(targets).first(count));
    runtime.backend->upload(tokens.data(), tokens_, *runtime.stream);
    runtime.backend->upload(targets.data(), targets_, *runtime.stream);
    Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
    const LossOutput output = runtime.model->loss(tape, tokens_, targets_, context);
    float sum = 0.0f;
    runtime.backend->download(output.sum.value, &sum, *runtime.stream);
    mine.nats += static_cast<double>(sum);
    mine.tokens += count_targets(targets);
  }
  LossSum total;
  for (const LossSum& loss : all_gather_records(session_.communicator, mine)) {
    total.nats += loss.nats;
    total.tokens += loss.tokens;
  }
  return total.nats / static_cast<double>(total.tokens);
}

}  // namespace mantissa
