// Random numbers for solvers: the same for the same seed on every machine.
#pragma once

#include <cstdint>

#include "core/tensor/philox.h"

namespace mantissa {

class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}

  uint32_t word() {
    if (next_ == 4) {
      words_ = philox(seed_, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 0});
      ++block_;
      next_ = 0;
    }
    return words_[next_++];
  }
  double uniform() { return word() * 0x1p-32; }  // [0, 1)
  // 0, ..., count - 1.
  int below(int count) { return static_cast<int>((uint64_t{word()} * static_cast<uint32_t>(count)) >> 32); }

 private:
  uint64_t seed_ = 0;
  uint64_t block_ = 0;
  PhiloxCounter words_{};
  int next_ = 4;
};

}  // namespace mantissa
