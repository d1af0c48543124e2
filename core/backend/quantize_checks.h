// As kernel_checks.h, for quantize_args.h.
#pragma once

#include "core/backend/check_args.h"
#include "core/backend/quantize_args.h"

namespace mantissa {

struct DelayedScalesExtents {
  int64_t ranks;
  int64_t tensors;
};

void check_args(const AmaxArgs& args);
void check_args(const TensorScaleArgs& args);
Rows check_args(const QuantizeArgs& args);  // src
void check_args(const FromCodesArgs& args);
Rows check_args(const HadamardArgs& args);  // x
DelayedScalesExtents check_args(const DelayedScalesArgs& args);

}  // namespace mantissa
