// Probes: kernels that measure the effect of rounding on tensors. They read and count; they change no operand.
//
// kWrite overwrites a record with the counts of this call; kAccumulate adds them.
#pragma once

#include "core/kernels/kernel_args.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/exponent_histogram.h"
#include "core/quant/probe_records.h"

namespace mantissa {

// Counts the magnitudes of x (float, any shape).
struct ExponentHistogramArgs {
  static constexpr std::string_view kName = "exponent_histogram";
  Tensor x{};
  Tensor record{};  // bytes of one ExponentHistogram
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.x, &args.record}; }
};

// For each of kStagnationFormats, counts the weights w (any shape) fp32 with |dw| < ulp(w) / 2: an update leaves them
// unchanged, see UpdateStagnation. One of two tensors, in weight's shape, gives the update:
//   delta    fp32: dw itself, before it is added;
//   updated  fp32: the weights after it; dw = updated - weight, in fp32. For fp32 itself this shows only that a weight
//            did not change, since the addition has rounded dw away.
struct UpdateStagnationArgs {
  static constexpr std::string_view kName = "update_stagnation";
  Tensor weight{}, delta{}, updated{};
  Tensor record{};  // bytes of one UpdateStagnation
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.weight, &args.delta, &args.updated, &args.record}; }
};

// Counts the losses when QuantizeArgs rounds src (R, C) float to nearest. format, axis and scale as in QuantizeArgs.
struct RoundingLossesArgs {
  static constexpr std::string_view kName = "rounding_losses";
  Tensor src{};
  TensorFormat format{};
  BlockAxis axis = BlockAxis::kColumns;
  Tensor scale{};
  Tensor record{};  // bytes of one FormatLosses
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.src, &args.scale, &args.record}; }
};

// Sums the differences of x (float, any shape) from reference (fp32, on a CPU also fp64; equal numel). Each device adds
// in its own order, which is the same in every run.
struct CompareArgs {
  static constexpr std::string_view kName = "compare";
  Tensor x{}, reference{};
  Tensor record{};  // bytes of one ErrorSums
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.x, &args.reference, &args.record}; }
};

MANTISSA_DECLARE_KERNEL(ExponentHistogramArgs, void)
MANTISSA_DECLARE_KERNEL(UpdateStagnationArgs, void)
MANTISSA_DECLARE_KERNEL(RoundingLossesArgs, Rows)
MANTISSA_DECLARE_KERNEL(CompareArgs, void)

KernelWork work_of(const ExponentHistogramArgs& args);
KernelWork work_of(const UpdateStagnationArgs& args);
KernelWork work_of(const RoundingLossesArgs& args);
KernelWork work_of(const CompareArgs& args);

}  // namespace mantissa
