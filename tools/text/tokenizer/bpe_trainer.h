// Trains a byte-level BPE. The result is that of Hugging Face's BpeTrainer on the same texts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/text/tokenizer/pre_tokenizer.h"

namespace mantissa {

struct BpeTrainerOptions {
  int64_t vocab = 0;                        // tokens at most, special ones and the 256 bytes included
  std::string pattern = "gpt2";             // one of trainable_patterns()
  std::vector<std::string> special_tokens;  // they get the first ids
  int64_t min_frequency = 0;                // pairs that are rarer are not merged
};

struct TrainedBpe {
  // By id, as tokenizer.json spells them.
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> merges;
};

// Patterns that tokenizer.json can express.
std::vector<std::string> trainable_patterns();

// All threads of the caller count words. ConfigError for an unknown pattern, or a vocabulary that has no room for the
// bytes.
TrainedBpe train_bpe(std::span<const std::string_view> texts, const BpeTrainerOptions& options);

// The text of a tokenizer.json.
std::string to_tokenizer_json(const TrainedBpe& trained, const BpeTrainerOptions& options);

}  // namespace mantissa
