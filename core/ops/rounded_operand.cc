#include "core/ops/rounded_operand.h"

#include "core/base/error.h"
#include "core/quant/narrow_format.h"
#include "core/quant/scales.h"

namespace mantissa {
namespace {

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
        "layer '{}': the {} of {} has {} {}, and the recipe {} needs a multiple of {} there: give {}, a recipe that "
        "takes {} ({}current or delayed), or leave the operand unrounded by precision.rules: {{match: '{}', op: "
        "linear, format: low}}",
        weight.precision_layer(), name(use.role), name(use.product), size, what, name(use.format->scaling), block,
        nearest_multiples(size, block), size, recipes_for(size), weight.precision_layer()));
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

// The magnitude to which a tensor's scale maps its amax.
float tensor_max(TensorFormat format) {
  return format.scaling == Scaling::kTwoLevel ? kTwoLevelMax : narrow_format(format.format).max;
}

DelayedScales* delayed_scales_of(const Tape& tape, const OperandUse& use) {
  return use.format->scaling == Scaling::kDelayed ? tape.options().delayed_scales : nullptr;
}

// Rounds x into `room`. Returns the matrix with the scale that was used.
RoundedMatrix round_into(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use,
                         const RoundedWeights::Room& room) {
  Backend& backend = tape.backend();
  QuantizeArgs args{.src = x,
                    .dst = room.matrix.values,
                    .format = *use.format,
                    .axis = axis_of(use),
                    .stochastic = stochastic_args(tape, x, use),
                    .codes = room.matrix.codes,
                    .transposed_codes = room.matrix.transposed_codes,
                    .code_scales = room.matrix.code_scales,
                    .transposed_code_scales = room.matrix.transposed_code_scales};
  if (DelayedScales* const delayed = delayed_scales_of(tape, use)) {
    const DelayedScales::Slot slot = delayed->slot(weight, use.role, use.format->format);
    args.scale = slot.scale;
    if (!slot.left && (tape.training() || use.role == Role::kWeight)) args.record = slot.record;
  } else if (has_tensor_scale(use.format->scaling)) {
    backend.run(AmaxArgs{.x = x, .record = room.record, .mode = GradientMode::kWrite}, tape.stream());
    const Tensor& scale = room.matrix.scale;
    backend.run(TensorScaleArgs{.record = room.record, .max = tensor_max(*use.format), .scale = scale}, tape.stream());
    args.scale = scale;
  }
  backend.run(args, tape.stream());
  RoundedMatrix made = room.matrix;
  made.scale = args.scale;
  return made;
}

// Records x's amax and returns x cast to bf16: it has no scale yet.
RoundedMatrix calibrate(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use) {
  const DelayedScales::Slot slot = delayed_scales_of(tape, use)->slot(weight, use.role, use.format->format);
  if (!slot.left) tape.backend().run(AmaxArgs{.x = x, .record = slot.record}, tape.stream());
  return {.values = tape.cast(tape.cast(x, DType::kBF16), use.values)};
}

RoundedMatrix in_values_dtype(Tape& tape, RoundedMatrix made, const OperandUse& use) {
  if (made.values.defined()) made.values = tape.cast(made.values, use.values);
  return made;
}

RoundedMatrix allocate_codes(Tape& tape, const Tensor& x, const OperandUse& use) {
  const auto allocate_scales = [&](const Tensor& codes) {
    const CodeScalesExtent extent = code_scales_extent(*use.format, axis_of(use), codes.dim(0), codes.dim(1));
    return extent.count > 0 ? tape.allocate(extent.dtype, {extent.count}, "scales of codes") : Tensor();
  };
  RoundedMatrix made{.layout = block_scale_layout(use.format->scaling, axis_of(use))};
  if (use.codes.plain) {
    made.codes = tape.allocate(DType::kU8, x.shape(), "codes");
    made.code_scales = allocate_scales(made.codes);
  }
  if (use.codes.transposed) {
    made.transposed_codes = tape.allocate(DType::kU8, {x.dim(1), x.dim(0)}, "transposed codes");
    made.transposed_code_scales = allocate_scales(made.transposed_codes);
  }
  return made;
}

Tensor transformed(Tape& tape, const Tensor& x) {
  Tensor y = tape.allocate(DType::kBF16, x.shape(), "transformed operand");
  tape.backend().run(HadamardArgs{.x = x, .y = y}, tape.stream());
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

DType values_dtype(const LinearFormats& formats, Product product, DType compute) {
  for (const Role role : kAllRoles) {
    if (multiplies(product, role) && !formats.at(product, role) && compute != DType::kBF16) return DType::kF32;
  }
  return DType::kBF16;
}

RoundedMatrix round_operand(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use) {
  if (!use.format) return {.values = tape.cast(x, use.values)};
  require_whole_blocks(weight, x, use, axis_of(use));
  if (is_calibrating(tape, *use.format)) return calibrate(tape, x, weight, use);
  const Tensor source = use.transformed ? transformed(tape, x) : x;
  RoundedWeights::Room room;
  if (use.codes.any()) room.matrix = allocate_codes(tape, x, use);
  if (!use.codes.any()) room.matrix.values = tape.allocate(DType::kBF16, x.shape(), "rounded operand");
  if (has_tensor_scale(use.format->scaling) && delayed_scales_of(tape, use) == nullptr) {
    room.matrix.scale = tape.allocate(DType::kF32, {1}, "scale");
    room.record = tape.allocate(DType::kU8, {static_cast<int64_t>(sizeof(QuantizeRecord))}, "amax");
  }
  return in_values_dtype(tape, round_into(tape, source, weight, use, room), use);
}

RoundedMatrix round_weight(Tape& tape, const Parameter& weight, const Tensor& copy, const OperandUse& use) {
  RoundedWeights* const kept = tape.options().rounded_weights;
  if (!use.format || kept == nullptr || is_calibrating(tape, *use.format)) {
    return round_operand(tape, copy, weight, use);
  }
  const DelayedScales* const delayed = delayed_scales_of(tape, use);
  require_whole_blocks(weight, copy, use, axis_of(use));
  const RoundedWeights::Key key{.parameter = &weight,
                                .format = *use.format,
                                .axis = axis_of(use),
                                .form = use.codes.any() ? RoundedForm::kCodes : RoundedForm::kValues};
  const RoundedMatrix& made =
      kept->get(key, delayed != nullptr ? delayed->version() : 0,
                [&](const RoundedWeights::Room& room) { return round_into(tape, copy, weight, use, room); });
  return in_values_dtype(tape, made, use);
}

}  // namespace mantissa
