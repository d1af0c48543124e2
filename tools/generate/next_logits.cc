#include "tools/generate/next_logits.h"

#include <fmt/format.h>

#include <algorithm>

namespace mantissa {

void require_causal(const Model& model, const ModelConfig& config) {
  if (model.objective() == Objective::kNextToken) return;
  throw ConfigError(fmt::format("model '{}' predicts masked tokens: it cannot continue a text", config.name));
}

int64_t padded_length(int64_t length, int64_t context) {
  constexpr int64_t kStep = 64;
  return std::min((length + kStep - 1) / kStep * kStep, context);
}

Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config) {
  const int64_t padded = padded_length(length, config.context);
  const Tensor logits = model.logits(tape, tokens.slice(0, padded), padded).value;  // (padded, vocab)
  return tape.cast(logits.slice((length - 1) * config.vocab, config.vocab), DType::kF32);
}

}  // namespace mantissa
