// OpTimes: the times of steps, added up by phase and operation.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/profile/step_spans.h"

namespace mantissa {

struct OpTime {
  std::string_view phase{};
  std::string_view op{};  // empty: the time of the phase in no operation
  bool beside = false;    // on another stream than that of the step, at the same time
  int64_t calls = 0;
  bool polled = false;  // went on between its calls: some of its time may stand in other phases
  double ms = 0.0;      // without operations within it
  KernelWork work{};    // of all calls
};

// The rows that are not `beside` add up to step_ms(), and those of one phase to that phase without the phases in it.
class OpTimes {
 public:
  void add(const StepSpans& step);

  int64_t steps() const { return steps_; }
  // Of all steps, from begin to end on their own stream.
  double step_ms() const { return step_ms_; }
  // Of every operation that was polled: all of its rows in one, without a phase.
  std::vector<OpTime> polled() const;
  // By phase, in the order in which phases first began; within it what is beside behind the rest; within that by
  // falling time, no operation last.
  std::vector<OpTime> rows() const;
  // Phases, the step among them, with the milliseconds of all steps, phases within it included; in the order in which
  // they first began.
  const std::vector<std::pair<std::string_view, double>>& phases() const { return phases_; }

 private:
  // Products in different dtypes have different ceilings.
  using Key = std::tuple<std::string_view, std::string_view, bool, DType>;
  size_t phase_index(std::string_view phase) const;

  std::map<Key, OpTime> sums_;
  std::set<std::string_view> polled_;
  std::vector<std::pair<std::string_view, double>> phases_;
  int64_t steps_ = 0;
  double step_ms_ = 0.0;
};

}  // namespace mantissa
