// As kernel_checks.h, for quantize_args.h.
#pragma once

#include "core/backend/check_args.h"
#include "core/backend/quantize_args.h"

namespace mantissa {

void check_args(const AmaxArgs& args);
Rows check_args(const QuantizeArgs& args);  // src

}  // namespace mantissa
