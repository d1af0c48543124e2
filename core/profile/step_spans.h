// StepSpans: where the time of one step went, as plain data.
#pragma once

#include <vector>

#include "core/kernels/kernel_args.h"

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
  double begin_us = 0.0, end_us = 0.0;  // since the first traced step began
  double self_us = 0.0;                 // without nested spans
};

struct StepSpans {
  std::vector<Span> spans;  // in the order in which they began; the first is the step
};

}  // namespace mantissa
