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

Evaluation::Evaluation(const Config& config, ModelRuntime& runtime, const Batches& batches, Communicator& communicator)
    : config_(config), runtime_(runtime), batches_(batches), communicator_(communicator) {
  const TrainConfig& train = config.train;
  if (train.eval_interval == 0) return;
  sequences_ = std::min(train.eval_batches * train.global_batch, batches.validation_windows());
  const int64_t count = train.micro_batch * config.model.context;
  tokens_ = runtime.backend->make_tensor(DType::kI32, {count}, "validation tokens");
  targets_ = runtime.backend->make_tensor(DType::kI32, {count}, "validation targets");
}

double Evaluation::run() {
  const int64_t context = config_.model.context, block = config_.train.micro_batch;
  const int64_t stride = block * communicator_.size();
  LossSum mine;
  for (int64_t first = block * communicator_.rank(); first < sequences_; first += stride) {
    // The last micro-batch is padded with ignored targets, so that the device need not prepare another shape.
    std::vector<int32_t> tokens(static_cast<size_t>(block * context)), targets(tokens.size(), kIgnoredTarget);
    const auto count = static_cast<size_t>(std::min(block, sequences_ - first) * context);
    batches_.validation(static_cast<uint64_t>(first), std::span(tokens).first(count), std::span(targets).first(count));
    runtime_.backend->upload(tokens.data(), tokens_, *runtime_.stream);
    runtime_.backend->upload(targets.data(), targets_, *runtime_.stream);
    Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation});
    const LossOutput output = runtime_.model->loss(tape, tokens_, targets_, context);
    float sum = 0.0f;
    runtime_.backend->download(output.sum.value, &sum, *runtime_.stream);
    mine.nats += static_cast<double>(sum);
    mine.tokens += count_targets(targets);
  }
  LossSum total;
  for (const LossSum& loss : all_gather_records(communicator_, mine)) {
    total.nats += loss.nats;
    total.tokens += loss.tokens;
  }
  return total.nats / static_cast<double>(total.tokens);
}

}  // namespace mantissa
