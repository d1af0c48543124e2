// Times of steps: the spans of one step, and the times of several steps, added up by phase and operation.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "core/profile/kernel_work.h"

namespace mantissa {

enum class SpanKind : uint8_t {
  kPhase,  // "forward"
  kOp,     // "gemm"
  kPoll,   // more of an op that is under way: a poll of a collective, or the wait for it
};

// Spans of one lane are nested: each lies within its parent or beside it.
struct Span {
  const char* name;
  const char* phase;  // the innermost open phase; of a phase, the phase itself
  SpanKind kind;
  int lane;  // 0: the step's stream, which has the phases; others run at the same time
  KernelWork work;
  double begin_us = 0.0, end_us = 0.0;  // since the start of the first traced step
  double self_us = 0.0;                 // without nested spans
};

struct StepSpans {
  std::vector<Span> spans;  // in the order of their starts; the first is the step
};

struct OpTime {
  std::string_view phase{};
  std::string_view op{};  // empty: the time of the phase outside of operations
  bool beside = false;    // on another stream than the step's, at the same time
  int64_t calls = 0;
  bool polled = false;  // ran on between its calls: some of its time may be in other phases
  double ms = 0.0;      // without nested operations
  KernelWork work{};    // of all calls
};

// The rows that are not `beside` add up to step_ms(). In a phase, they add up to its time without nested phases.
class OpTimes {
 public:
  void add(const StepSpans& step);

  int64_t steps() const { return steps_; }
  double step_ms() const { return step_ms_; }  // total time of all steps, from start to end on the step's stream
  std::vector<OpTime> polled() const;          // a row for each polled operation: the sum of its rows, without a phase
  // Sorted by phase in the order of first starts, then `beside`, then descending times, rows of no op last.
  std::vector<OpTime> rows() const;
  // All phases and the step, with the milliseconds of all steps and nested phases, in the order of their first start.
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

// --- The output of a profile: the table of time, rates and per cent of the ceiling, and a trace.

// The measured peaks of this device.
struct Ceilings {
  std::map<DType, double> gemm_flops;  // FLOP/s of GEMMs by operand dtype; absent: not known
  double memory_bytes = 0.0;           // bytes/s read and written; 0: not known

  // The roofline (Williams, Waterman, Patterson 2009): the longer of two times, the FLOP of this work at the peak of
  // its dtype, and its traffic at the peak of the memory. Nothing if a peak is unknown or does not apply (Bound).
  std::optional<double> least_seconds(const KernelWork& work) const;
};

// The dtypes of the products in `times`: the table needs the GEMM peak of each.
std::vector<DType> product_dtypes(const OpTimes& times);

// A line for each row of `times`, as means per step, then the ceilings. Begins with a line feed.
std::string to_text(const OpTimes& times, const Ceilings& ceilings);

// A trace in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev load. Source: "Trace Event Format"
// by the Chromium project; complete events ("ph": "X"), times in microseconds. Returns a JSON object. Process `rank`
// has a thread for phases and one for the operations of each stream; events of a thread are nested. Operations carry
// their phase, and FLOP, dtype and bytes if they have any. Leaves out polls of less than 10 us.
std::string to_chrome_trace(const std::vector<StepSpans>& steps, int rank);

}  // namespace mantissa
