// The samples that a training and its evaluation run on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/data/batch.h"
#include "models/model_config.h"
#include "tools/config/config.h"

namespace mantissa {

// A source of token sequences. A sequence is `context` tokens and as many targets and, if config.data packs documents,
// starts.
class Batches {
 public:
  virtual ~Batches() = default;
  // Sequences [first, first + n) of the training order (step * global_batch + index), n = tokens.size() / context.
  virtual void train(uint64_t first, const SequenceSpans& out) const = 0;
  // Sequences [first, first + n) of the validation text, from its front.
  virtual void validation(uint64_t first, const SequenceSpans& out) const = 0;
  virtual int64_t validation_windows() const { return 0; }  // sequences of the validation text
  // Whether each position of each training sequence has a target that counts.
  virtual bool all_targets_counted() const { return true; }
  // Equal for equal training and validation samples.
  virtual uint64_t fingerprint() const = 0;
  // Lines for the log, all of it in the first.
  virtual std::vector<std::string> describe() const = 0;
  // Doubts whether the data is what the configuration says.
  virtual std::vector<std::string> warnings() const { return {}; }
};

// Batches of the files that config.data names. DataError naming file and offset.
std::shared_ptr<const Batches> open_batches(const Config& config, Objective objective);

// Batches of random tokens for measurements, in memory: token k with a probability of about 1 / k, as words have in a
// text. No validation text.
std::shared_ptr<const Batches> random_batches(const Config& config, Objective objective);

// How many targets are to be predicted.
int64_t count_targets(std::span<const int32_t> targets);

}  // namespace mantissa
