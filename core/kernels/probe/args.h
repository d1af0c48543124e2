// Probes: kernels that measure what rounding does to tensors. They read and count; they change no operand.
#pragma once

#include "core/kernels/kernel_args.h"
#include "core/kernels/kernel_work.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/probe_records.h"
#include "core/quant/exponent_histogram.h"

namespace mantissa {

// The magnitudes of x (float, any shape), counted: the record's from now on (kWrite), or added to those that it holds
// (kAccumulate).
struct ExponentHistogramArgs {
  static constexpr std::string_view kName = "exponent_histogram";
  Tensor x{};
  Tensor record{};  // bytes of one ExponentHistogram
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.x, &args.record}; }
};

// How many of the weights w (any shape) fp32 an update leaves where they are, in each of kStagnationFormats: those with
// |dw| < ulp(w) / 2, see UpdateStagnation. The update is given by one of two, of weight's shape, the other undefined:
//   delta    fp32: dw itself, before it is added;
//   updated  fp32: the weights after it; dw = updated - weight, in fp32. Of fp32 itself this only tells that a weight
//            did not change: what dw was before it was rounded away is lost.
struct UpdateStagnationArgs {
  static constexpr std::string_view kName = "update_stagnation";
  Tensor weight{}, delta{}, updated{};
  Tensor record{};  // bytes of one UpdateStagnation
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.weight, &args.delta, &args.updated, &args.record}; }
};

// What quantize() does to the values of src (R, C) float, counted as by rounding to nearest: the record's from now on
// (kWrite), or added. format, axis and scale are those of QuantizeArgs.
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

// How far x (float, any shape) is from reference (fp32, as many elements): the record's sums from now on (kWrite), or
// added. Each device adds in an order of its own, the same in every run.
struct CompareArgs {
  static constexpr std::string_view kName = "compare";
  Tensor x{}, reference{};
  Tensor record{};  // bytes of one ErrorSums
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& args) { return std::array{&args.x, &args.reference, &args.record}; }
};

void check_args(const ExponentHistogramArgs& args);
void check_args(const UpdateStagnationArgs& args);
Rows check_args(const RoundingLossesArgs& args);
void check_args(const CompareArgs& args);

KernelWork work_of(const ExponentHistogramArgs& args);
KernelWork work_of(const UpdateStagnationArgs& args);
KernelWork work_of(const RoundingLossesArgs& args);
KernelWork work_of(const CompareArgs& args);

namespace cpu {
void run(const ExponentHistogramArgs& args);
void run(const UpdateStagnationArgs& args);
void run(const RoundingLossesArgs& args);
void run(const CompareArgs& args);
}  // namespace cpu

namespace cuda {
void run(const ExponentHistogramArgs& args, CudaStream& stream);
void run(const UpdateStagnationArgs& args, CudaStream& stream);
void run(const RoundingLossesArgs& args, CudaStream& stream);
void run(const CompareArgs& args, CudaStream& stream);
}  // namespace cuda

}  // namespace mantissa
