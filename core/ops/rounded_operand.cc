#include "core/ops/rounded_operand.h"

#include "core/kernels/gemm/args.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/scales.h"

namespace mantissa {
namespace {

// Whether the product sums over the rows of the stored operand. It then reads the transposed codes.
constexpr bool sums_over_rows(Product product, Role role) {
  return product == Product::kWeightGradient || (product == Product::kInputGradient && role == Role::kWeight);
}

Fp8Gemm fp8_gemm(Product product, TensorFormat a, TensorFormat b, const LayerExtents& e) {
  if (product == Product::kWeightGradient) {
    return {.a = a, .b = b, .m = e.outputs, .n = e.inputs, .k = e.rows, .c = DType::kF32};
  }
  if (product == Product::kInputGradient) {
    return {.a = a, .b = b, .m = e.rows, .n = e.inputs, .k = e.outputs, .c = e.dtype};
  }
  return {.a = a, .b = b, .m = e.rows, .n = e.outputs, .k = e.inputs, .c = e.dtype, .has_bias = e.has_bias};
}

// Recipes whose block length divides `size`, as text: "mxfp8, nvfp4, ".
std::string recipes_for(int64_t size) {
  std::string text;
  for (const Scaling scaling : kAllScalings) {
    if (block_length(scaling) > 0 && size % block_length(scaling) == 0) text += fmt::format("{}, ", name(scaling));
  }
  return text;
}

// The multiples of `block` next to `size`, as text.
std::string nearest_multiples(int64_t size, int64_t block) {
  const int64_t below = size / block * block;
  return below == 0 ? fmt::format("{}", block) : fmt::format("{} or {}", below, below + block);
}

void require_whole_blocks(const Parameter& weight, const Tensor& x, const OperandUse& use, BlockAxis axis) {
  const int64_t block = block_length(use.format->scaling);
  const auto check = [&](int64_t size, const char* what) {
    if (block == 0 || size % block == 0) return;
    throw ConfigError(fmt::format(
        "layer '{0}': the {1} of {2} has {3} {4}, and the recipe {5} needs a multiple of {6} there: give {7}, a recipe "
        "that takes {3} ({8}current or delayed), or leave the operand unrounded by precision.rules: {{match: '{0}', "
        "op: linear, format: low}}",
        weight.precision_layer(), name(use.role), name(use.product), size, what, name(use.format->scaling), block,
        nearest_multiples(size, block), recipes_for(size)));
  };
  const char* const rows = use.role == Role::kWeight ? "channels" : "rows (train.micro_batch * model.context)";
  if (axis != BlockAxis::kRows) check(x.dim(1), "channels");
  if (axis != BlockAxis::kColumns) check(x.dim(0), rows);
}

StochasticArgs stochastic_args(const Tape& tape, const Tensor& x, const OperandUse& use) {
  if (use.format->scaling != Scaling::kTwoLevel || use.role != Role::kGradient) return {};
  const RandomKey& random = tape.options().random;
  MANTISSA_CHECK(random.samples > 0 && random.step.defined(),
                 "[rounded_operand] the tape was made without the number of samples or of the step, which stochastic "
                 "rounding needs");
  return {.elements_per_sample = x.numel() / random.samples,
          .seed = random.seed,
          .step = random.step,
          .site = use.random_site,
          .first_sample = random.first_sample};
}

DelayedScales* delayed_scales_of(const Tape& tape, const OperandUse& use) {
  return use.format->scaling == Scaling::kDelayed ? tape.options().delayed_scales : nullptr;
}

// Rounds x into `buffers`. Returns the matrix with the scale that was used.
RoundedMatrix round_into(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use,
                         const RoundingBuffers& buffers) {
  Backend& backend = tape.backend();
  QuantizeArgs args{.src = x,
                    .dst = buffers.matrix.values,
                    .format = *use.format,
                    .axis = axis_of(use),
                    .stochastic = stochastic_args(tape, x, use),
                    .codes = buffers.matrix.codes,
                    .transposed_codes = buffers.matrix.transposed_codes,
                    .code_scales = buffers.matrix.code_scales,
                    .transposed_code_scales = buffers.matrix.transposed_code_scales};
  if (DelayedScales* const delayed = delayed_scales_of(tape, use)) {
    const DelayedScales::Slot slot = delayed->slot(weight, use.role, use.format->format);
    args.scale = slot.scale;
    if (!slot.left && (tape.training() || use.role == Role::kWeight)) args.record = slot.record;
  } else if (has_tensor_scale(use.format->scaling)) {
    backend.run(AmaxArgs{.x = x, .record = buffers.record, .mode = GradientMode::kWrite}, tape.stream());
    // The magnitude to which a tensor's scale maps its amax.
    const float max = use.format->scaling == Scaling::kTwoLevel ? kTwoLevelMax : narrow_format(use.format->format).max;
    const Tensor& scale = buffers.matrix.scale;
    backend.run(TensorScaleArgs{.record = buffers.record, .max = max, .scale = scale}, tape.stream());
    args.scale = scale;
  }
  backend.run(args, tape.stream());
  RoundedMatrix made = buffers.matrix;
  made.scale = args.scale;
  return made;
}

// Records x's amax and returns x: it has no scale yet.
RoundedMatrix calibrate(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use) {
  const DelayedScales::Slot slot = delayed_scales_of(tape, use)->slot(weight, use.role, use.format->format);
  if (!slot.left) tape.run(AmaxArgs{.x = x, .record = slot.record});
  return {.values = tape.cast(x, use.values)};
}

RoundedMatrix in_values_dtype(Tape& tape, RoundedMatrix made, const OperandUse& use) {
  if (made.values.defined()) made.values = tape.cast(made.values, use.values);
  return made;
}

Tensor transformed(Tape& tape, const Tensor& x) {
  Tensor y = tape.allocate(DType::kBF16, x.shape(), "transformed operand");
  tape.run(HadamardArgs{.x = x, .y = y});
  return y;
}

}  // namespace

BlockAxis axis_of(const OperandUse& use) {
  const bool is_square = use.format->scaling == Scaling::kBlock || use.format->scaling == Scaling::kTwoLevel;
  if (block_length(use.format->scaling) == 0) return BlockAxis::kColumns;  // any axis: one scale for the tensor
  if (use.role == Role::kWeight) {
    // Square blocks serve both the forward product and the input gradient.
    if (is_square) return BlockAxis::kBoth;
    return use.product == Product::kForward ? BlockAxis::kColumns : BlockAxis::kRows;
  }
  return use.product == Product::kWeightGradient ? BlockAxis::kRows : BlockAxis::kColumns;
}

bool is_transformed(const LinearFormats& formats, Product product) {
  const auto x = formats.at(product, Role::kActivation), dy = formats.at(product, Role::kGradient);
  return product == Product::kWeightGradient && x && dy && x->scaling == Scaling::kTwoLevel &&
         dy->scaling == Scaling::kTwoLevel;
}

bool is_stochastic(const LinearFormats& formats, Product product, Role role) {
  const auto format = formats.at(product, role);
  return role == Role::kGradient && format && format->scaling == Scaling::kTwoLevel;
}

bool is_calibrating(const Tape& tape, TensorFormat format) {
  const DelayedScales* const scales = tape.options().delayed_scales;
  return format.scaling == Scaling::kDelayed && scales != nullptr && scales->calibrating();
}

DType values_dtype(const Tape& tape, const LinearFormats& formats, Product product, DType compute) {
  for (const Role role : kAllRoles) {
    const auto format = formats.at(product, role);
    const bool is_rounded = format && !is_calibrating(tape, *format);
    if (multiplies(product, role) && !is_rounded && compute != DType::kBF16) return DType::kF32;
  }
  return DType::kBF16;
}

RoundedMatrix round_operand(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use) {
  if (!use.format) return {.values = tape.cast(x, use.values)};
  require_whole_blocks(weight, x, use, axis_of(use));
  if (is_calibrating(tape, *use.format)) return calibrate(tape, x, weight, use);
  const Tensor source = use.transformed ? transformed(tape, x) : x;
  RoundingBuffers buffers;
  if (use.codes.any()) {
    const auto allocate = [&](DType dtype, const Shape& shape) { return tape.allocate(dtype, shape, "codes"); };
    buffers.matrix = make_code_buffers(*use.format, axis_of(use), use.codes, x.dim(0), x.dim(1), allocate);
  } else {
    buffers.matrix.values = tape.allocate(DType::kBF16, x.shape(), "rounded operand");
  }
  if (has_tensor_scale(use.format->scaling) && delayed_scales_of(tape, use) == nullptr) {
    buffers.matrix.scale = tape.allocate(DType::kF32, {1}, "scale");
    buffers.record = tape.allocate(DType::kU8, {static_cast<int64_t>(sizeof(QuantizeRecord))}, "amax");
  }
  return in_values_dtype(tape, round_into(tape, source, weight, use, buffers), use);
}

RoundedMatrix round_weight(Tape& tape, const Parameter& weight, const Tensor& copy, const OperandUse& use) {
  DerivedWeights* const kept = tape.kept_rounded();
  if (!use.format || kept == nullptr || is_calibrating(tape, *use.format)) {
    return round_operand(tape, copy, weight, use);
  }
  const DelayedScales* const delayed = delayed_scales_of(tape, use);
  require_whole_blocks(weight, copy, use, axis_of(use));
  const DerivedKey key{.parameter = &weight,
                       .kind = DerivedKind::kRounded,
                       .format = *use.format,
                       .axis = axis_of(use),
                       .form = use.codes.any() ? RoundedForm::kCodes : RoundedForm::kValues};
  const RoundedMatrix& made =
      kept->rounded(key, delayed != nullptr ? delayed->version() : 0,
                    [&](const RoundingBuffers& buffers) { return round_into(tape, copy, weight, use, buffers); });
  return in_values_dtype(tape, made, use);
}

bool multiplies_codes(Fp8GemmSupport support, const LinearFormats& formats, Product product,
                      const LayerExtents& extents) {
  const auto [a_role, b_role] = roles_of(product);
  const auto a = formats.at(product, a_role), b = formats.at(product, b_role);
  return a && b && multiplies(support, fp8_gemm(product, *a, *b, extents));
}

CodeProducts::CodeProducts(const Tape& tape, const LinearFormats& formats, const LayerExtents& extents)
    : formats_(formats) {
  const Fp8GemmSupport support = tape.backend().fp8_gemm_support();
  const auto waits = [&](Product product, Role role) {
    const auto format = formats.at(product, role);
    return format && is_calibrating(tape, *format);
  };
  for (const Product product : kAllProducts) {
    const auto [a, b] = roles_of(product);
    has_[static_cast<size_t>(product)] =
        multiplies_codes(support, formats, product, extents) && !waits(product, a) && !waits(product, b);
  }
}

CodeLayouts CodeProducts::layouts(Product product, Role role) const {
  if (!has(product)) return {};
  return {.plain = !sums_over_rows(product, role), .transposed = sums_over_rows(product, role)};
}

bool CodeProducts::shares(Role role) const {
  const Product first = role == Role::kActivation ? Product::kForward : Product::kInputGradient;
  const Product second = Product::kWeightGradient;
  const auto format = formats_.at(first, role);
  return has(first) && has(second) && format == formats_.at(second, role) && block_length(format->scaling) == 0;
}

GemmArgs rounded_product(Product product, const LinearFormats& formats, const RoundedMatrix& a,
                         const RoundedMatrix& b) {
  const auto [a_role, b_role] = roles_of(product);
  GemmArgs args{.a_scale = a.scale, .b_scale = b.scale};
  if (a.values.defined()) {
    args.a = a.values, args.b = b.values;
    args.trans_a = product == Product::kWeightGradient ? Transpose::kYes : Transpose::kNo;
    args.trans_b = product == Product::kForward ? Transpose::kYes : Transpose::kNo;
    return args;
  }
  const bool transposes_a = sums_over_rows(product, a_role), transposes_b = sums_over_rows(product, b_role);
  args.a = transposes_a ? a.transposed_codes : a.codes;
  args.b = transposes_b ? b.transposed_codes : b.codes;
  args.a_block_scales = transposes_a ? a.transposed_code_scales : a.code_scales;
  args.b_block_scales = transposes_b ? b.transposed_code_scales : b.code_scales;
  args.a_layout = a.layout, args.b_layout = b.layout;
  args.trans_b = Transpose::kYes;
  args.a_format = formats.at(product, a_role)->format;
  args.b_format = formats.at(product, b_role)->format;
  return args;
}

}  // namespace mantissa
