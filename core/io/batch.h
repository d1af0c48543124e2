// Batches: tokens and targets of consecutive samples, as the models read them.
#pragma once

#include <cstdint>
#include <span>

#include "core/io/sampler.h"
#include "core/io/token_data.h"

namespace mantissa {

inline constexpr int32_t kIgnoredTarget = -100;

// Samples [first_sample, first_sample + n) of the range, where n = tokens.size() / context. tokens, targets (n,
// context): the target of a position is the token that follows it.
void fill_next_token_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                           std::span<int32_t> tokens, std::span<int32_t> targets);

struct MaskingOptions {
  double fraction = 0.15;  // of the positions that are predicted
  int32_t mask_token = 0;
  int32_t vocab = 256;  // of the random replacements: [0, vocab)
  uint64_t seed = 0;
};

// The same windows for bidirectional models: a random choice of positions is to be predicted, all others are ignored.
// Of the chosen ones 80 % show the mask token, 10 % a random token, 10 % themselves (Devlin et al. 2019). The choice
// depends on (seed, sample, position) only; a sample has at least one predicted position.
void fill_masked_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                       const MaskingOptions& options, std::span<int32_t> tokens, std::span<int32_t> targets);

}  // namespace mantissa
