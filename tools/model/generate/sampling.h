// The next token of a text, from the logits of a model. Definitions and order are those of the logits processors of
// Hugging Face's transformers: repetition penalty, temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace mantissa
