// Texts from a causal model, a token at a time. The keys and values of earlier tokens are kept, so that each token
// takes the same time. The next token is drawn by the definitions and order of the logits processors of Hugging Face's
// transformers: repetition penalty, temperature, top-k, top-p, min-p. docs/generation.md has the rules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/ops/attention.h"
#include "tools/model/runtime/model_runtime.h"

namespace mantissa {

struct SamplingFilters {
  double temperature = 0.8;         // 0: always the likeliest token
  int64_t top_k = 40;               // the likeliest tokens; 0: all. Tokens as likely as the last of them stay too
  double top_p = 1.0;               // the likeliest tokens whose probabilities add up to this; 1: all
  double min_p = 0.0;               // tokens at least this times as likely as the likeliest one; 0: all
  double repetition_penalty = 1.0;  // of the text's tokens: divides positive logits, multiplies negative ones

  // ConfigError for a value outside of its range.
  void require_valid() const;
};

// A token that may be drawn, and its probability over the likeliest token's.
struct TokenWeight {
  int32_t token = 0;
  double weight = 0.0;
};

// The tokens left by the filters: at least the likeliest, and nothing else if the temperature is 0. `logits` (vocab);
// `text`: the tokens before, which must be in the vocabulary. In double. The lowest token comes first among equally
// likely ones.
std::vector<TokenWeight> filtered_tokens(std::span<const float> logits, std::span<const int32_t> text,
                                         const SamplingFilters& filters);

// Draws one of them by their weights; `uniform` in [0, 1).
int32_t draw_token(std::span<const TokenWeight> tokens, double uniform);

struct SamplingOptions {
  int64_t tokens = 200;  // that each text grows by
  SamplingFilters filters{};
  uint64_t seed = 1;  // token n of text i depends on (seed, i, n) and the text before it only
};

struct GeneratorOptions {
  int64_t batch = 1;          // texts that are continued at a time
  bool keeps_packed = false;  // see TapeOptions: faster on a CPU, for the memory of another copy of the weights
  int64_t vocab = INT64_MAX;  // only ids below are drawn: the others of the model have no text
};

enum class Continue : uint8_t { kYes, kNo };

// How many tokens the model still sees of a text longer than its context. Dropping a single token for each new one
// would cost a pass over all of them.
constexpr int64_t kept_tokens(int64_t context) { return context > 1 ? context / 2 : 1; }

class Generator {
 public:
  // `runtime` must have weights and outlive the generator. Memory is sized by `model`: its context may be as short as
  // padded_length() of the longest text. ConfigError for a model that does not predict the next token.
  Generator(ModelRuntime& runtime, const ModelConfig& model, const GeneratorOptions& options = {});

  // DataError if the prompt is empty or holds a token outside of the vocabulary. ConfigError for options.
  void require_valid(const std::vector<int32_t>& prompt, const SamplingOptions& options) const;

  // Continues each prompt, checked as by require_valid(), and hands every new token to emit(index of the prompt,
  // token), which may end the text. The model sees a text from its first token on, or the last `context` tokens of a
  // prompt. After `context` tokens, it goes on with the last kept_tokens(). Other texts of a batch change no token of a
  // text, unless a precision rounds all rows of an operand by one scale. FaultError where logits are NaN or infinite.
  using Emit = std::function<Continue(size_t index, int32_t token)>;
  // Called where the context is full: the model will not see the first `left_out` tokens again. May end the text.
  using Fill = std::function<Continue(size_t index, int64_t left_out)>;
  void run(std::span<const std::vector<int32_t>> prompts, const SamplingOptions& options, const Emit& emit,
           const Fill& fill = nullptr);
  // The same for one prompt.
  void run(const std::vector<int32_t>& prompt, const SamplingOptions& options,
           const std::function<Continue(int32_t)>& emit) {
    run(std::span(&prompt, 1), options, [&](size_t, int32_t token) { return emit(token); });
  }

 private:
  // A text that is being continued, in a row of the cache.
  struct Text {
    size_t index = 0;
    std::vector<int32_t> tokens;
    int64_t added = 0;
    int64_t begin = 0;  // the first token that the model sees
    std::vector<float> logits;

    int64_t seen() const { return std::ssize(tokens) - begin; }
  };

  // Logits after all tokens of the text that the model sees. `row`: of the cache.
  void begin_text(Text& text, int64_t row, KeyValueCache& cache);
  // Logits after one more token of each text. `rows`: of the cache.
  void step(const std::vector<Text*>& texts, const std::vector<int32_t>& rows, KeyValueCache& cache);
  // Draws the next token and hands it over. Whether the text goes on.
  bool extend(Text& text, const SamplingOptions& options, const Emit& emit) const;
  int64_t vocab() const { return std::min(model_.vocab, options_.vocab); }
  void upload(const std::vector<int32_t>& values, const Tensor& to) const;
  void fetch(const Tensor& logits, Text& text) const;

  ModelRuntime& runtime_;
  const ModelConfig& model_;
  const GeneratorOptions options_;
  int64_t rows_;                                    // max(context, batch)
  Tensor tokens_, sequences_, positions_, starts_;  // (rows) i32
};

// Runs every pass needed to continue texts, on a backend that computes nothing: of every length up to model.context.
// ConfigError as require_causal().
void generate_dry(ModelRuntime& runtime, const ModelConfig& model, const GeneratorOptions& options);

// Whether a training shows texts that the model continues: where the model is causal, and the data are bytes or have a
// tokenizer.
bool draws_samples(const Config& config, const Model& model);

}  // namespace mantissa
