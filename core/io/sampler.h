// Sampler: which window of the data is sample number n of a run. A function of (seed, n) only, so that any number of
// ranks reads the same batches and a resumed run goes on exactly where it stopped: the data cursor is one number.
//
// The data is cut into windows of context + 1 tokens that start every `context` tokens, so that each token is predicted
// once an epoch. Each epoch visits all windows once in an order of its own, and shifts them by a few tokens of its own
// where the data's length leaves room.
#pragma once

#include <cstdint>

namespace mantissa {

enum class SampleOrder : uint8_t {
  kShuffled,    // a keyed permutation per epoch
  kSequential,  // for validation: windows from the front, unshifted
};

class Sampler {
 public:
  // DataError naming `what` if the tokens do not fill one window.
  Sampler(int64_t tokens, int64_t context, uint64_t seed, SampleOrder order, const char* what);

  int64_t windows() const { return windows_; }
  // Index of the first token of sample number `sample` = step * global_batch + index in the global batch.
  int64_t window_begin(uint64_t sample) const;

 private:
  int64_t windows_, context_, slack_;
  uint64_t key_;
  SampleOrder order_;
};

// A keyed permutation of [0, size): element `index` goes to the result. Feistel network with a Philox round function
// over the next even number of bits, walked along its cycle until it falls into [0, size) (Black & Rogaway 2002).
uint64_t permute(uint64_t index, uint64_t size, uint64_t key, uint64_t epoch);

}  // namespace mantissa
