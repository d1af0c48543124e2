// Arguments of the kernels that watch what rounding does to tensors: they read, count and change nothing else. As in
// kernel_args.h, float means fp32, bf16 or fp16.
#pragma once

#include <cstdint>

#include "core/backend/kernel_args.h"
#include "core/quant/exponent_histogram.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// The magnitudes of x (float, any shape), counted: the record's from now on (kWrite), or added to those that it holds
// (kAccumulate).
struct ExponentHistogramArgs {
  Tensor x{};
  Tensor record{};  // bytes of one ExponentHistogram
  GradientMode mode = GradientMode::kAccumulate;
};

}  // namespace mantissa
