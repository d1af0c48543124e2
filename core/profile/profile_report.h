// The output of a profile: the table of time, rates and per cent of the ceiling, and a trace.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/profile/op_times.h"

namespace mantissa {

// The measured peaks of this device.
struct Ceilings {
  std::map<DType, double> gemm_flops;  // FLOP/s of GEMMs by operand dtype; absent: not known
  double memory_bytes = 0.0;           // bytes/s read and written; 0: not known

  // The roofline (Williams, Waterman, Patterson 2009): the longer of two times, the FLOP of this work at the peak of
  // its dtype, and its traffic at the peak of the memory. Nothing if a peak is not known or does not apply to the work
  // (Bound).
  std::optional<double> least_seconds(const KernelWork& work) const;
};

// The dtypes of the products in `times`: the table needs the GEMM peak of each.
std::vector<DType> product_dtypes(const OpTimes& times);

// A line for each row of `times`, as means per step, then the ceilings. Begins with a line feed.
std::string to_text(const OpTimes& times, const Ceilings& ceilings);

// A trace in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev load. Source: "Trace Event Format"
// by the Chromium project; complete events ("ph": "X"), times in microseconds. Returns a JSON object. Process `rank`
// has a thread for phases and one for the operations of each stream; events of a thread are nested. Operations carry
// their phase, and FLOP, dtype and bytes if they have any. Polls of a collective that took less than 10 us are left
// out.
std::string to_chrome_trace(const std::vector<StepSpans>& steps, int rank);

}  // namespace mantissa
