// Text from a causal model, one token at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/train/model_runtime.h"

namespace mantissa {

struct SamplingOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 40;        // 0: all
  uint64_t seed = 1;         // token n depends on (seed, n) and the text before it only
};

enum class Continue : uint8_t { kYes, kNo };

class Generator {
 public:
  // `runtime` must have weights and outlive the generator. ConfigError for a model that does not predict the next
  // token.
  Generator(ModelRuntime& runtime, const ModelConfig& model);

  // DataError if the prompt is empty or holds a token outside of the vocabulary.
  void require_valid(const std::vector<int32_t>& prompt, const SamplingOptions& options) const;
  // Continues `prompt` (at least one token of the vocabulary, DataError otherwise); hands each new token to `emit`,
  // which may end the text. The model sees the last `context` tokens.
  void run(const std::vector<int32_t>& prompt, const SamplingOptions& options,
           const std::function<Continue(int32_t)>& emit);

 private:
  std::vector<float> next_logits(const std::vector<int32_t>& text);

  ModelRuntime& runtime_;
  const ModelConfig& model_;
  Tensor tokens_;  // (context) i32
};

// Draws from softmax(logits / temperature) over the top_k largest; `uniform` in [0, 1).
int32_t sample_token(const std::vector<float>& logits, double temperature, int64_t top_k, double uniform);

}  // namespace mantissa
