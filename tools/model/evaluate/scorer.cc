#include "tools/model/evaluate/scorer.h"

#include "core/base/progress_bar.h"
#include "tools/run/guard/watchdog.h"

namespace mantissa {

Scorer::Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length, Communicator* communicator)
    : runtime_(runtime), communicator_(communicator) {
  tokens_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  targets_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored targets");
}

void Scorer::run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length) {
  const Tensor tokens = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
  runtime.model->loss(tape, tokens, tokens, length);
}

std::vector<float> Scorer::losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length) {
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  const auto count = static_cast<int64_t>(tokens.size());
  MANTISSA_CHECK(tokens.size() == targets.size() && count <= tokens_.numel() && count % length == 0,
                 "[scorer] {} tokens, {} targets, sequences of {}, room for {}", count, targets.size(), length,
                 tokens_.numel());
  const Tensor inputs = tokens_.slice(0, count), wanted = targets_.slice(0, count);
  backend.upload(tokens.data(), inputs, stream);
  backend.upload(targets.data(), wanted, stream);
  Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation});
  const Tensor losses = runtime_.model->loss(tape, inputs, wanted, length).losses;
  std::vector<float> result(tokens.size());
  if (losses.dtype() == DType::kF32) {
    backend.download(losses, result.data(), stream);
    return result;
  }
  std::vector<double> wide(tokens.size());
  backend.download(losses, wide.data(), stream);
  std::copy(wide.begin(), wide.end(), result.begin());
  return result;
}

void Scorer::run(size_t count, const std::function<ScoredPass(size_t pass)>& make,
                 const std::function<void(size_t pass, std::span<const float> losses)>& take) {
  const size_t ranks = communicator_ != nullptr ? static_cast<size_t>(communicator_->size()) : 1;
  const size_t rank = ranks > 1 ? static_cast<size_t>(communicator_->rank()) : 0;
  ProgressBar progress("score: passes", static_cast<int64_t>(count));
  for (size_t first = 0; first < count; first += ranks) {
    std::vector<std::vector<float>> round(1);
    if (first + rank < count) {
      const ScoredPass pass = make(first + rank);
      round[0] = losses(pass.tokens, pass.targets, pass.length);
    }
    if (ranks > 1) round = all_gather_arrays(*communicator_, round[0]);
    for (size_t i = 0; i < ranks && first + i < count; ++i) take(first + i, round[i]);
    tell_progress();
    progress.reach(static_cast<int64_t>(first + ranks));
  }
}

}  // namespace mantissa
