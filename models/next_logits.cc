#include "models/next_logits.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/round_up.h"

namespace mantissa {

void require_causal(const Model& model, const ModelConfig& config) {
  if (model.objective() == Objective::kNextToken) return;
  throw ConfigError(fmt::format("model '{}' predicts masked tokens: it cannot continue a text", config.name));
}

int64_t padded_length(int64_t length, int64_t context) {
  constexpr int64_t kStep = 64;
  return std::min(round_up(length, kStep), context);
}

Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config) {
  const int64_t padded = padded_length(length, config.context);
  const Tensor hidden = model.hidden(tape, tokens.slice(0, padded), padded).value;  // (padded, width)
  const Var last{hidden.slice((length - 1) * config.width, config.width).view(Shape{1, config.width})};
  return tape.cast(model.head(tape, last).value, DType::kF32).view(Shape{config.vocab});
}

}  // namespace mantissa
