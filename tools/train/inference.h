// Forward passes of a trained model: the loss on validation text, and generated text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tools/train/batches.h"
#include "tools/train/model_runtime.h"

namespace mantissa {

// The loss on validation text.
class Evaluation {
 public:
  // References must outlive the object.
  Evaluation(const Config& config, ModelRuntime& runtime, const Batches& batches, Communicator& communicator);

  // Whether there is validation text and train.eval_interval asks for it.
  bool enabled() const { return sequences_ > 0; }
  int64_t sequences() const { return sequences_; }
  // Mean loss over the non-ignored tokens of the first sequences of the validation text, nats: the same set in every
  // call and for every number of ranks. Collective.
  double run();

 private:
  const Config& config_;
  ModelRuntime& runtime_;
  const Batches& batches_;
  Communicator& communicator_;
  int64_t sequences_ = 0;
  Tensor tokens_, targets_;  // (micro_batch * context) i32
};

// ---- Text from a causal model, one token at a time.

struct SamplingOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 40;        // 0: all
  uint64_t seed = 1;         // token n depends on (seed, n) and the text before it only
};

class Generator {
 public:
  // `runtime` must have weights and outlive the generator. ConfigError for a model that does not predict the next
  // token.
  Generator(ModelRuntime& runtime, const ModelConfig& model);

  // DataError if the prompt is empty or holds a token outside of the vocabulary.
  void require_valid(const std::vector<int32_t>& prompt) const;
  // Continues `prompt` (at least one token of the vocabulary, DataError otherwise); hands each new token to `emit`. The
  // model sees the last `context` tokens.
  void run(const std::vector<int32_t>& prompt, const SamplingOptions& options,
           const std::function<void(int32_t)>& emit);

 private:
  std::vector<float> next_logits(const std::vector<int32_t>& text);

  ModelRuntime& runtime_;
  const ModelConfig& model_;
  Tensor tokens_;  // (context) i32
};

// Draws from softmax(logits / temperature) over the top_k largest; `uniform` in [0, 1).
int32_t sample_token(const std::vector<float>& logits, double temperature, int64_t top_k, double uniform);

// Text and tokens of byte-level models.
std::vector<int32_t> byte_tokens(const std::string& text);
// Printable form of one byte token: the byte itself, or "?" for tokens that are no byte.
std::string byte_text(int32_t token);

}  // namespace mantissa
