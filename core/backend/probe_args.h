// Arguments of the kernels that watch what rounding does to tensors: they read, count and change nothing else. As in
// kernel_args.h, float means fp32, bf16 or fp16.
#pragma once

#include <cstdint>

#include "core/backend/kernel_args.h"
#include "core/backend/quantize_args.h"
#include "core/quant/error_sums.h"
#include "core/quant/exponent_histogram.h"
#include "core/quant/format_losses.h"
#include "core/quant/update_stagnation.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// The magnitudes of x (float, any shape), counted: the record's from now on (kWrite), or added to those that it holds
// (kAccumulate).
struct ExponentHistogramArgs {
  Tensor x{};
  Tensor record{};  // bytes of one ExponentHistogram
  GradientMode mode = GradientMode::kAccumulate;
};

// How many of the weights w (any shape) fp32 an update leaves where they are, in each of kStagnationFormats: those with
// |dw| < ulp(w) / 2, see UpdateStagnation. The update is given by one of two, of weight's shape, the other undefined:
//   delta    fp32: dw itself, before it is added;
//   updated  fp32: the weights after it; dw = updated - weight, in fp32. Of fp32 itself this only tells that a weight
//            did not change: what dw was before it was rounded away is lost.
struct UpdateStagnationArgs {
  Tensor weight{}, delta{}, updated{};
  Tensor record{};  // bytes of one UpdateStagnation
  GradientMode mode = GradientMode::kAccumulate;
};

// What quantize() does to the values of src (R, C) float, counted as by rounding to nearest: the record's from now on
// (kWrite), or added. format, axis and scale are those of QuantizeArgs.
struct RoundingLossesArgs {
  Tensor src{};
  TensorFormat format{};
  BlockAxis axis = BlockAxis::kColumns;
  Tensor scale{};
  Tensor record{};  // bytes of one FormatLosses
  GradientMode mode = GradientMode::kAccumulate;
};

// How far x (float, any shape) is from reference (fp32, as many elements): the record's sums from now on (kWrite), or
// added. Each device adds in an order of its own, the same in every run.
struct CompareArgs {
  Tensor x{}, reference{};
  Tensor record{};  // bytes of one ErrorSums
  GradientMode mode = GradientMode::kAccumulate;
};

}  // namespace mantissa
