// A long text, scored in windows as long as a model sees.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/model/evaluate/scorer.h"

namespace mantissa {

struct WindowOptions {
  int64_t length = 0;     // tokens of a window that are read
  int64_t stride = 0;     // tokens from one window to the next; of later windows, the last `stride` predictions count
  int64_t sequences = 1;  // windows in a pass
};

// Calls `take(position, loss)` for every token but the first, in order: -log p of the token in nats, given those before
// it in its window. Ranks share the windows, and all of them learn all losses. Collective.
void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take);

struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t bytes = 0;  // 0: the file holds token ids
};
// DataError naming the file if it cannot be read, or has fewer than 2 tokens or one outside of the vocabulary.
ScoredText read_scored_text(const std::string& path, const TextCodec& text, const ModelConfig& model);

struct TextScore {
  double nats = 0.0;
  int64_t tokens = 0;  // predicted ones
  int64_t bytes = 0;   // of the text; 0: not known

  double loss() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
  double bits_per_byte() const;
  std::string describe() const;  // "perplexity 9.0250, 2.20000 nats per token"
};
void to_json(nlohmann::json& json, const TextScore& score);

TextScore score_text(Scorer& scorer, const ScoredText& text, const WindowOptions& options);

}  // namespace mantissa
