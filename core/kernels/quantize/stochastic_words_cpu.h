// The random words of stochastic rounding, by element of a matrix: StochasticArgs.
#pragma once

#include "core/kernels/quantize/args.h"
#include "core/tensor/philox.h"

namespace mantissa::cpu {

class StochasticWords {
 public:
  // The arguments must have passed check_args().
  explicit StochasticWords(const StochasticArgs& args)
      : per_sample_(args.elements_per_sample),
        seed_(args.seed),
        step_(given() ? static_cast<uint32_t>(*args.step.data<int32_t>()) : 0),
        site_(args.site),
        first_sample_(args.first_sample) {}

  bool given() const { return per_sample_ != 0; }

  // Words of elements [element, element + count) of the matrix. Groups of four neighbours share a counter, which is
  // computed once. The scalar generator is fast enough, since this path only emulates hardware.
  void fill(int64_t element, int64_t count, uint32_t* words) const {
    PhiloxCounter group{};
    int64_t known = -1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = (element + i) / per_sample_, e = (element + i) % per_sample_;
      const int64_t at = sample * per_sample_ + e / 4;
      if (at != known) group = philox(seed_, counter(sample, e / 4)), known = at;
      words[i] = group[static_cast<size_t>(e % 4)];
    }
  }

 private:
  PhiloxCounter counter(int64_t sample, int64_t group) const {
    return {static_cast<uint32_t>(group), site_, first_sample_ + static_cast<uint32_t>(sample), step_};
  }

  int64_t per_sample_;
  uint64_t seed_;
  uint32_t step_, site_, first_sample_;
};

}  // namespace mantissa::cpu
