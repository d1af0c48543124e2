#include "amp/working_dtype.h"

namespace mantissa {

void assign_working_dtypes(ParameterSet& parameters, const PrecisionPolicy& policy, WorkingWeights mode) {
  for (int index = 0; index < parameters.size(); ++index) {
    Parameter& parameter = parameters[index];
    MANTISSA_CHECK(!parameter.weight.defined(), "[working_dtype] the weight of '{}' is already bound", parameter.name);
    parameter.working_dtype = DType::kF32;
    if (mode == WorkingWeights::kFp32 || parameter.shape.rank() < 2) continue;
    const Precision& precision = policy.at(parameter.precision_layer());
    parameter.working_dtype = compute_dtype(precision, AutocastState{}, Op::kLinear, DType::kF32, DType::kF32);
  }
}

}  // namespace mantissa
