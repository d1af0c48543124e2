// StepCalls: every kernel call and message of one training step, recorded in a dry run.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/decorators.h"
#include "core/kernels/fp8_gemm_support.h"
#include "tools/config/config.h"

namespace mantissa {

struct StepCalls {
  std::vector<KernelCall> calls;  // of one rank, in order, with the phases of a profile
  // Bytes of collectives that a rank sends to others, by phase: gradients ("backward", "reduce"), records ("decide"),
  // updated weights ("update").
  std::map<std::string_view, double> sent_bytes;

  double sent() const;
};

// The calls of one rank of `ranks`, in a step after the first: micro-batches, reduction, decision and update. Ranks
// share no memory. `support` and `packing`: see DryRunOptions. ConfigError as DryRun.
StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support = Fp8GemmSupport::kNone,
                     Backend* packing = nullptr);

}  // namespace mantissa
