// Traces in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev load.
// Source: "Trace Event Format" by the Chromium project; complete events ("ph": "X"), times in microseconds.
#pragma once

#include <string>
#include <vector>

#include "core/profile/step_spans.h"

namespace mantissa {

// Returns a JSON object. Process `rank` has a thread for phases and one for the operations of each stream; events of a
// thread are nested. Operations carry their phase, and FLOP, dtype and bytes if they have any. Polls of a collective
// that took less than 10 us are left out.
std::string to_chrome_trace(const std::vector<StepSpans>& steps, int rank);

}  // namespace mantissa
