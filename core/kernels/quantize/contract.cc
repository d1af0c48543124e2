// Rounding of matrices to low-precision formats, and its scales: checks of operands, FLOP and bytes.
#include "core/kernels/quantize/args.h"

#include <fmt/core.h>

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/quant/narrow_format.h"

namespace mantissa {
namespace {

void check_scale(const char* op, const Tensor& scale) { check_tensor(op, "scale", scale, DType::kF32, 1); }

void check_codes(const char* op, const Tensor& codes, const Tensor& values, Format format, const Tensor& scale) {
  check_tensor(op, "codes", codes, DType::kU8, values.numel());
  MANTISSA_CHECK(format == Format::kE4M3 || format == Format::kE5M2, "[{}] codes are e4m3 or e5m2, got {}", op,
                 info(format).name);
  check_scale(op, scale);
}

void check_stochastic(const StochasticArgs& args, Rows extents) {
  if (args.elements_per_sample == 0) return;
  const int64_t numel = extents.rows * extents.columns;
  MANTISSA_CHECK(args.elements_per_sample > 0 && args.elements_per_sample % extents.columns == 0 &&
                     numel % args.elements_per_sample == 0,
                 "[quantize] src ({}, {}) must be whole samples of whole rows, got samples of {} elements",
                 extents.rows, extents.columns, args.elements_per_sample);
  MANTISSA_CHECK(args.elements_per_sample <= int64_t{4} << 32, "[quantize] a sample has at most 2^34 elements, got {}",
                 args.elements_per_sample);
  check_tensor("quantize", "step", args.step, DType::kI32, 1);
}

void check_codes(const char* what, const char* dimensions, const Tensor& codes, const Shape& shape) {
  if (!codes.defined()) return;
  check_tensor("quantize", what, codes, DType::kU8, dimensions, shape);
}

// extents: those of the matrix of codes.
void check_code_scales(const char* what, const Tensor& scales, const Tensor& codes, const QuantizeArgs& args,
                       Rows extents) {
  const Scaling scaling = args.format.scaling;
  const bool have_scales = codes.defined() && !has_tensor_scale(scaling);
  MANTISSA_CHECK(have_scales || !scales.defined(),
                 "[quantize] {} go with their codes in block or mxfp8 scaling, and were given without", what);
  if (!have_scales) return;
  check_dtype("quantize", what, scales, scaling == Scaling::kMicro ? DType::kU8 : DType::kF32);
  const BlockScaleLayout layout = block_scale_layout(scaling, args.axis);
  check_shape("quantize", what, "(block_scale_count)", scales,
              Shape{block_scale_count(layout, extents.rows, extents.columns)});
}

// A product sums along the rows of codes and of transposed_codes, so their blocks lie along these rows.
void check_blocks_of_codes(const QuantizeArgs& args) {
  const auto scaling = name(args.format.scaling);
  MANTISSA_CHECK(args.format.scaling != Scaling::kTwoLevel, "[quantize] {} scaling makes no codes of 8 bits", scaling);
  if (block_length(args.format.scaling) == 0) return;
  MANTISSA_CHECK(args.format.scaling == Scaling::kBlock || args.axis != BlockAxis::kBoth,
                 "[quantize] {} codes have blocks within a row or a column (axis kColumns or kRows), got kBoth",
                 scaling);
  MANTISSA_CHECK(args.axis != BlockAxis::kRows || !args.codes.defined(),
                 "[quantize] {} codes need blocks within a row (axis kColumns), got kRows", scaling);
  MANTISSA_CHECK(args.axis != BlockAxis::kColumns || !args.transposed_codes.defined(),
                 "[quantize] {} transposed_codes need blocks within a column (axis kRows), got kColumns", scaling);
}

void check_results(const QuantizeArgs& args, Rows extents) {
  const Rows transposed{extents.columns, extents.rows};
  if (args.makes_codes()) {
    MANTISSA_CHECK(!args.dst.defined(), "[quantize] dst and codes were both given: one of them is made");
    check_codes("codes", "(R, C)", args.codes, Shape{extents.rows, extents.columns});
    check_codes("transposed_codes", "(C, R)", args.transposed_codes, Shape{transposed.rows, transposed.columns});
    check_blocks_of_codes(args);
    MANTISSA_CHECK(args.stochastic.elements_per_sample == 0, "[quantize] codes are rounded to nearest");
  } else {
    check_tensor("quantize", "dst", args.dst, DType::kBF16, "(R, C)", args.src.shape());
  }
  check_code_scales("code_scales", args.code_scales, args.codes, args, extents);
  check_code_scales("transposed_code_scales", args.transposed_code_scales, args.transposed_codes, args, transposed);
}

}  // namespace

void check_args(const AmaxArgs& args) {
  check_float("amax", "x", args.x);
  check_record<QuantizeRecord>("amax", "record", args.record);
}

void check_args(const TensorScaleArgs& args) {
  check_record<QuantizeRecord>("tensor_scale", "record", args.record);
  check_scale("tensor_scale", args.scale);
  MANTISSA_CHECK(args.max > 0.0f && is_finite(static_cast<double>(args.max)),
                 "[tensor_scale] max must be a format's largest number, got {}", args.max);
}

Rows check_args(const QuantizeArgs& args) {
  const Rows extents = rows_of("quantize", "src", args.src);
  MANTISSA_CHECK(refusal(args.format).empty(), "[quantize] {}", refusal(args.format));
  check_results(args, extents);
  const bool needs_scale = has_tensor_scale(args.format.scaling);
  MANTISSA_CHECK(args.scale.defined() == needs_scale, "[quantize] {} scaling {} a tensor's scale, got {}",
                 name(args.format.scaling), needs_scale ? "needs" : "has not", needs_scale ? "none" : "one");
  if (needs_scale) check_scale("quantize", args.scale);
  if (args.record.defined()) check_record<QuantizeRecord>("quantize", "record", args.record);
  check_stochastic(args.stochastic, extents);
  return extents;
}

void check_args(const FromCodesArgs& args) {
  check_float("from_codes", "dst", args.dst);
  check_codes("from_codes", args.codes, args.dst, args.format, args.scale);
}

void check_args(const RoundContributionArgs& args) {
  constexpr const char* kOp = "round_contribution";
  check_dtype(kOp, "src", args.src, DType::kF32);
  if (args.step.defined()) check_tensor(kOp, "step", args.step, DType::kI32, 1);
  const int64_t n = args.src.numel();
  if (args.has_feedback()) {
    for (const Tensor& residual : args.residuals) check_tensor(kOp, "residuals", residual, DType::kF32, n);
    check_tensor(kOp, "applied", args.applied, DType::kI32, 1);
    check_tensor(kOp, "unit", args.unit, DType::kF32, 1);
  }
  if (!is_coded(args.wire)) {
    MANTISSA_CHECK(size_bytes(args.wire) == 2 && (args.step.defined() || args.has_feedback()),
                   "[{}] wire must be e4m3, e5m2 or, rounded stochastically or with error feedback, bf16 or fp16; got "
                   "{} {} step",
                   kOp, args.wire, args.step.defined() ? "with a" : "without a");
    return check_tensor(kOp, "dst", args.dst, args.wire, n);
  }
  MANTISSA_CHECK(n % kCodeBlock == 0 && args.first >= 0 && args.first % kCodeBlock == 0,
                 "[{}] src and first must be multiples of {} elements, got {} and {}", kOp, kCodeBlock, n, args.first);
  for (const Tensor* const tensor : {&args.src, &args.dst, &args.residuals[0], &args.residuals[1]}) {
    MANTISSA_CHECK(!tensor->defined() || reinterpret_cast<uintptr_t>(tensor->raw()) % 16 == 0,
                   "[{}] src, dst and residuals must lie at multiples of 16 bytes", kOp);
  }
  if (args.dst.dtype() == DType::kF32) return check_numel(kOp, "dst", args.dst, n);
  check_dtype(kOp, "dst", args.dst, args.wire);
  MANTISSA_CHECK(args.dst.shape().rank() == 2 && args.first + n <= args.dst.dim(0) * coded_row_numel(args.dst.dim(1)),
                 "[{}] dst must hold rows of codes up to element {}, got {}", kOp, args.first + n, args.dst.shape());
}

Rows check_args(const HadamardArgs& args) {
  const Rows extents = rows_of("hadamard", "x", args.x);
  check_float("hadamard", "y", args.y);
  check_shape("hadamard", "y", "(R, C)", args.y, args.x.shape());
  MANTISSA_CHECK(extents.rows % kHadamardLength == 0, "[hadamard] x must have a multiple of {} rows, got {}",
                 kHadamardLength, extents.rows);
  MANTISSA_CHECK(args.x.raw() != args.y.raw(), "[hadamard] y must not be x");
  return extents;
}

DelayedScalesExtents check_args(const DelayedScalesArgs& args) {
  constexpr const char* kOp = "delayed_scales";
  constexpr auto kBytes = static_cast<int64_t>(sizeof(QuantizeRecord));
  check_dtype(kOp, "scales", args.scales, DType::kF32);
  const int64_t tensors = args.scales.numel();
  check_dtype(kOp, "records", args.records, DType::kU8);
  MANTISSA_CHECK(tensors > 0 && args.records.numel() > 0 && args.records.numel() % (tensors * kBytes) == 0,
                 "[delayed_scales] records must hold those of {} tensors for every rank, {} bytes each, got {} bytes",
                 tensors, kBytes, args.records.numel());
  check_tensor(kOp, "mine", args.mine, DType::kU8, tensors * kBytes);
  MANTISSA_CHECK(args.mine.raw() != args.records.raw(), "[delayed_scales] mine must not be records");
  check_tensor(kOp, "total", args.total, DType::kU8, tensors * kBytes);
  MANTISSA_CHECK(args.options.history > 0, "[delayed_scales] a history has at least one entry, got {}",
                 args.options.history);
  check_tensor(kOp, "history", args.history, DType::kI32, "(S, history)", Shape{tensors, args.options.history});
  check_tensor(kOp, "maxima", args.maxima, DType::kF32, tensors);
  check_tensor(kOp, "entries", args.entries, DType::kI32, 1);
  if (args.decision.defined()) check_record<UpdateDecision>(kOp, "decision", args.decision);
  return {args.records.numel() / (tensors * kBytes), tensors};
}

KernelWork work_of(const QuantizeArgs& args) {
  return traffic(bytes_of(args.src, args.dst, args.codes, args.transposed_codes, args.code_scales,
                          args.transposed_code_scales, args.scale) +
                 2.0 * bytes_of(args.record));
}

std::string variant_of(const QuantizeArgs& a) {
  constexpr const char* kAxes[] = {"columns", "rows", "both"};
  return fmt::format("{} {}{}", name(a.format), kAxes[static_cast<int>(a.axis)],
                     a.stochastic.elements_per_sample > 0 ? " stochastic" : "");
}

KernelWork work_of(const DelayedScalesArgs& args) {
  return traffic(bytes_of(args.records, args.mine, args.total, args.history, args.maxima) +
                 2.0 * bytes_of(args.scales, args.entries));
}

}  // namespace mantissa
