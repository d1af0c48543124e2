// Blend: which of several sources of data a sample comes from, by their weights.
//
// Source: Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980). The next sample is of the source
// that would first be late, among the sources at least 1 / (2k - 2) samples below their share. After every number n of
// samples, each of k sources has had n * weight samples to within 1 - 1 / (2k - 2). All numbers are integers, so that
// every machine names the same source.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace mantissa {

class Blend {
 public:
  // Weights above 0, of any sum.
  explicit Blend(const std::vector<double>& weights);

  size_t sources() const { return parts_.size(); }
  // The source's weight, where all weights together are 1.
  double share(size_t source) const;

  struct Place {
    size_t source = 0;
    uint64_t index = 0;  // how many earlier samples were of this source
  };
  // The places of samples [first, first + out.size()). Takes some nanoseconds for every sample before them, once.
  void find(uint64_t first, std::span<Place> out) const;

 private:
  // Before some sample: how often each source has come, and by how much it is behind its share, in units of 1 / whole_.
  struct State {
    std::vector<uint64_t> counts;
    std::vector<int64_t> behind;
  };
  size_t next(State& state) const;

  std::vector<int64_t> parts_;  // weights; their sum is whole_
  int64_t whole_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<State> marks_;  // at every kMarkInterval samples, as far as anybody has asked
};

}  // namespace mantissa
