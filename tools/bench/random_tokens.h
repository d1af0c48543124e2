// RandomTokens: a token file for measurements, the same in every process.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "core/io/token_data.h"

namespace mantissa {

// 2^21 tokens in a temporary file that rank 0 writes for all, and removes at the end. The k-th token of the
// vocabulary is drawn with a probability of about 1/k, as words of a text are: how often gradients of an embedding meet
// in one row is part of what a step costs, and there is something to learn.
class RandomTokens {
 public:
  // Collective. DataError if the file cannot be written.
  RandomTokens(Communicator& communicator, int64_t vocab);
  ~RandomTokens();
  RandomTokens(const RandomTokens&) = delete;
  RandomTokens& operator=(const RandomTokens&) = delete;

  const std::string& path() const { return path_; }
  TokenLayout layout() const { return layout_; }  // u16, or u32 where the vocabulary does not fit it
  // Before the end, by any rank: where the job is about to be aborted.
  void remove() const;

 private:
  bool owner_;
  std::string path_;
  TokenLayout layout_;
};

}  // namespace mantissa
