// StepSpans: where the time of one step went, as plain data.
#pragma once

#include <vector>

#include "core/kernels/kernel_work.h"

namespace mantissa {

enum class SpanKind : uint8_t {
  kPhase,  // "forward"
  kOp,     // "gemm"
  kPoll,   // more of an op that is under way: a look at a collective, or the wait for it
};

// Spans of one lane are nested: each lies within its parent or beside it.
struct Span {
  const char* name;
  const char* phase;  // the innermost that was open: of a phase itself
  SpanKind kind;
  int lane;  // 0: the stream of the step, to which phases belong; others work beside it
  KernelWork work;
  double begin_us = 0.0, end_us = 0.0;  // since the first traced step began
  double self_us = 0.0;                 // without what lies within it
};

struct StepSpans {
  std::vector<Span> spans;  // the first is the step; by the order in which they began
};

}  // namespace mantissa
