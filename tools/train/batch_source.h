// BatchSource: the run's text, and the batches that training and evaluation take from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/io/batch.h"
#include "models/model.h"
#include "tools/config/config.h"

namespace mantissa {

class BatchSource {
 public:
  // Opens and checks the data files; DataError naming file and offset.
  BatchSource(const Config& config, Objective objective);

  // Sequences [first, first + n) of the training order (step * global_batch + index), n = tokens.size() / context.
  void train(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  // Sequences [first, first + n) of the validation text, from its front.
  void validation(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const;

  int64_t train_tokens() const { return train_.size(); }
  int64_t train_windows() const { return train_order_.windows(); }
  int64_t validation_tokens() const { return validation_ ? validation_->size() : 0; }
  int64_t validation_windows() const { return validation_order_ ? validation_order_->windows() : 0; }
  size_t files() const { return files_; }
  // Equal when training and validation text are the same.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  void fill(const TokenRange& range, const Sampler& order, uint64_t seed, uint64_t first, std::span<int32_t> tokens,
            std::span<int32_t> targets) const;

  int64_t context_;
  Objective objective_;
  MaskingOptions masking_;
  TokenRange train_;
  std::optional<TokenRange> validation_;
  Sampler train_order_;
  std::optional<Sampler> validation_order_;
  size_t files_ = 0;
  uint64_t fingerprint_ = 0;
};

// How many targets are to be predicted.
int64_t count_targets(std::span<const int32_t> targets);

}  // namespace mantissa
