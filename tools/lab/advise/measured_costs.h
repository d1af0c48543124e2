// MeasuredCosts: costs of calls on the present device. Each distinct call is timed separately.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/lab/advise/prediction.h"

namespace mantissa {

// By call and operand: whether the operand must come from memory, because more bytes than the cache holds were touched
// since its last use. Counts in pages; an operand is cold if most of its pages are. Before the first call, the previous
// step has touched the same memory.
std::vector<std::vector<bool>> cold_operands(const StepCalls& step, double cache_bytes);
// The last-level cache of this machine; 32 MiB if the system does not say.
double last_level_cache_bytes();

class MeasuredCosts final : public CostModel {
 public:
  // Both must outlive the object. `cache_bytes`: see cold_operands().
  MeasuredCosts(Backend& backend, Stream& stream, double cache_bytes)
      : backend_(backend), stream_(stream), cache_bytes_(cache_bytes) {}

  // Times every distinct call of the steps once more. Calls are the same if they have the same signature() and cold
  // operands.
  void measure(const std::vector<StepCalls>& steps);

  // The median of a call's timings; times a call that was not timed yet.
  std::vector<Cost> costs(const StepCalls& step) override;
  double link_bandwidth() const override { return std::numeric_limits<double>::infinity(); }

 private:
  // Seconds of the call with random operands: the median over at least three repetitions and some 20 ms. On a GPU each
  // repetition is a batch of calls.
  double time(const KernelCall& call, const std::vector<bool>& cold);
  // The tensors that calls use in turn, by operand, adjacent in memory as parameters are; none for an undefined
  // operand. Cold operands have so many that twice the cache is touched between two uses.
  std::vector<std::vector<Tensor>> make_operands(const KernelCall& call, const std::vector<bool>& cold);
  // By call: its timings so far, and what is cold.
  struct Timed {
    std::vector<double>& seconds;
    std::vector<bool> cold;
  };
  std::vector<Timed> timings_of(const StepCalls& step);

  Backend& backend_;
  Stream& stream_;
  const double cache_bytes_;
  std::map<std::string, std::vector<double>> seconds_;  // all timings of a distinct call
  std::vector<std::shared_ptr<Storage>> memory_;        // by operand, kept for the next call
};

}  // namespace mantissa
