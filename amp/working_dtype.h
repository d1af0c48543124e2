// Decides the dtype in which each parameter's working weight is stored.
#pragma once

#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"

namespace mantissa {

enum class WorkingWeights : uint8_t {
  kLow,   // matrices in the dtype that their layer's matrix product computes in: cast once a step, by the optimizer
  kFp32,  // all in fp32: cast where they are used, through the weight-cast cache
};

// Sets working_dtype of every parameter, before its buffers are bound. Vectors (gains, biases) stay in fp32 in both
// modes: they are few, and norms and bias sums compute in fp32. The thread's AutocastScope plays no part.
void assign_working_dtypes(ParameterSet& parameters, const PrecisionPolicy& policy, WorkingWeights mode);

}  // namespace mantissa
