// StepCalls: every kernel call and message of one training step, learnt by walking it without computing.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/kernel_call.h"
#include "core/kernels/fp8_gemm_support.h"
#include "tools/config/config.h"

namespace mantissa {

struct StepCalls {
  std::vector<KernelCall> calls;  // of one rank, in order, with the phases that a profile of it has
  // Bytes that a rank sends to others, by phase: gradients ("backward", "reduce"), records, updated weights ("update").
  std::map<std::string_view, double> sent_bytes;

  double flops() const;
  double bytes() const;
  double sent() const;
};

// Of a step as all but the first are, of one rank of `ranks` that are not on one node's memory: its micro-batches, the
// reduction, the decision and the update. Weights are packed as on `packing`, and products of 8-bit operands are
// multiplied by `support`, as walk_step() has them. Walks the passes of StepWork and TrainStep. Touches no memory of
// the model's size. ConfigError as create_model() and AutocastPolicy.
StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support = Fp8GemmSupport::kNone,
                     Backend* packing = nullptr);

}  // namespace mantissa
