#include "tools/train/evaluation.h"

#include <algorithm>
#include <span>

#include "core/ops/cross_entropy.h"

namespace mantissa {
namespace {

struct LossSum {
  double nats = 0.0;
  int64_t tokens = 0;   // non-ignored
  bool is_bad = false;  // samples could not be read
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
  if (config.data.packs_documents()) {
    starts_ = runtime.backend->make_tensor(DType::kI32, {count}, "starts of validation documents");
  }
}

double Evaluation::run() {
  const int64_t context = config_.model.context, block = config_.train.micro_batch;
  const int64_t stride = block * communicator_.size();
  LossSum mine;
  std::string error;
  for (int64_t first = block * communicator_.rank(); first < sequences_; first += stride) {
    // The last micro-batch is padded with ignored targets, so that the device need not prepare another shape.
    std::vector<int32_t> tokens(static_cast<size_t>(block * context)), targets(tokens.size(), kIgnoredTarget);
    std::vector<int32_t> starts(starts_.defined() ? tokens.size() : 0);
    const auto count = static_cast<size_t>(std::min(block, sequences_ - first) * context);
    try {
      batches_.validation(static_cast<uint64_t>(first),
                          {std::span(tokens).first(count), std::span(targets).first(count),
                           std::span(starts).first(starts.empty() ? 0 : count)});
    } catch (const DataError& thrown) {
      mine.is_bad = true;
      error = thrown.what();
      break;
    }
    runtime_.backend->upload(tokens.data(), tokens_, *runtime_.stream);
    runtime_.backend->upload(targets.data(), targets_, *runtime_.stream);
    if (starts_.defined()) runtime_.backend->upload(starts.data(), starts_, *runtime_.stream);
    Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation, .document_starts = starts_});
    const LossOutput output = runtime_.model->loss(tape, tokens_, targets_, context);
    mine.nats += runtime_.backend->read_number(output.sum.value, *runtime_.stream);
    mine.tokens += count_targets(targets);
  }
  LossSum total;
  for (const LossSum& loss : all_gather_records(communicator_, mine)) {
    total.nats += loss.nats;
    total.tokens += loss.tokens;
    total.is_bad |= loss.is_bad;
  }
  if (total.is_bad) throw DataError(first_text(communicator_, error).text);
  if (total.tokens == 0 && sequences_ > 0) throw DataError("validation data: no target counts, all are masked");
  return total.nats / static_cast<double>(total.tokens);
}

}  // namespace mantissa
