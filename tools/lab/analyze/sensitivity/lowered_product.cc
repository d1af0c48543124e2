#include "tools/lab/analyze/sensitivity/lowered_product.h"

#include <cmath>

#include "core/kernels/probe/args.h"
#include "core/ops/rounded_operand.h"
#include "tools/probe/probe_row.h"

namespace mantissa {
namespace {

Shape shape_of(const LayerOperands& operands, Product product) {
  const int64_t rows = operands.x.dim(0), inputs = operands.x.dim(1), outputs = operands.dy.dim(1);
  if (product == Product::kForward) return {rows, outputs};
  return product == Product::kInputGradient ? Shape{rows, inputs} : Shape{outputs, inputs};
}

GemmArgs multiplied(Product product, const Tensor& a, const Tensor& b, const Tensor& c) {
  return {.a = a,
          .b = b,
          .c = c,
          .trans_a = product == Product::kWeightGradient ? Transpose::kYes : Transpose::kNo,
          .trans_b = product == Product::kForward ? Transpose::kYes : Transpose::kNo};
}

template <typename Record>
Record read(Tape& tape, const Tensor& record) {
  Record value;
  tape.backend().download(record, &value, tape.stream());
  return value;
}

template <typename Record>
Tensor make_record(Tape& tape) {
  const Record empty{};
  Tensor record = tape.allocate(DType::kU8, {static_cast<int64_t>(sizeof(Record))}, "record");
  tape.backend().upload(&empty, record, tape.stream());
  return record;
}

double distance_squares(Tape& tape, const Tensor& x, const Tensor& reference) {
  const Tensor record = make_record<ErrorSums>(tape);
  tape.backend().run(CompareArgs{.x = x, .reference = reference, .record = record}, tape.stream());
  return read<ErrorSums>(tape, record).error_squares;
}

// The numbers that the values of a rounded weight stand for.
double weight_error(Tape& tape, const RoundedMatrix& made, const Tensor& weight) {
  float scale = 1.0f;
  if (made.scale.defined()) tape.backend().download(made.scale, &scale, tape.stream());
  std::vector<float> exact(static_cast<size_t>(weight.numel())), values(exact.size());
  tape.backend().download(weight, exact.data(), tape.stream());
  tape.backend().download(tape.cast(made.values, DType::kF32), values.data(), tape.stream());
  double squares = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(values[i]) / static_cast<double>(scale) - static_cast<double>(exact[i]);
    squares += error * error;
  }
  return squares;
}

}  // namespace

Tensor exact_product(Tape& tape, const LayerOperands& operands, Product product) {
  const ProductRoles roles = roles_of(product);
  const Tensor result = tape.allocate(DType::kF32, shape_of(operands, product), "exact product");
  tape.backend().run(multiplied(product, operands.given(roles.a), operands.given(roles.b), result), tape.stream());
  return result;
}

LoweredProduct lowered_product(Tape& tape, const LayerOperands& operands, Product product,
                               const LinearFormats& formats) {
  const ProductRoles roles = roles_of(product);
  const Role both[] = {roles.a, roles.b};
  LoweredProduct lowered{.value = tape.allocate(DType::kF32, shape_of(operands, product), "lowered product"),
                         .losses = {},
                         .weight_error_squares = 0.0};
  RoundedMatrix made[2];
  for (const int side : {0, 1}) {
    const OperandUse use{.product = product,
                         .role = both[side],
                         .format = formats.at(product, both[side]),
                         .values = values_dtype(formats, product, DType::kF32),
                         .transformed = is_transformed(formats, product)};
    const Tensor& given = operands.given(both[side]);
    made[side] = both[side] == Role::kWeight ? round_weight(tape, operands.weight, given, use)
                                             : round_operand(tape, given, operands.weight, use);
    if (both[side] == Role::kWeight) lowered.weight_error_squares = weight_error(tape, made[side], given);
    if (!use.format) continue;
    const Tensor record = make_record<FormatLosses>(tape);
    Tensor source = given;
    if (use.transformed) {
      source = tape.allocate(DType::kBF16, given.shape(), "transformed operand");
      tape.backend().run(HadamardArgs{.x = given, .y = source}, tape.stream());
    }
    tape.backend().run(
        RoundingLossesArgs{.src = source, .format = *use.format, .axis = axis_of(use), .scale = made[side].scale, .record = record},
        tape.stream());
    lowered.losses[side] = read<FormatLosses>(tape, record);
  }
  GemmArgs args = multiplied(product, made[0].values, made[1].values, lowered.value);
  args.a_scale = made[0].scale;
  args.b_scale = made[1].scale;
  tape.backend().run(args, tape.stream());
  return lowered;
}

LoweredProduct lowered_product(Tape& tape, const LayerOperands& operands, Product product, DType dtype) {
  const ProductRoles roles = roles_of(product);
  const Role both[] = {roles.a, roles.b};
  LoweredProduct lowered{.value = {}, .losses = {}, .weight_error_squares = 0.0};
  Tensor made[2];
  for (const int side : {0, 1}) {
    const Tensor& given = operands.given(both[side]);
    const Tensor record = make_record<ExponentHistogram>(tape);
    tape.backend().run(ExponentHistogramArgs{.x = given, .record = record}, tape.stream());
    const bool is_scaled = both[side] == Role::kGradient && dtype == DType::kF16;
    lowered.losses[side] = format_losses(read<ExponentHistogram>(tape, record), format_of(dtype),
                                         is_scaled ? std::ilogb(operands.gradient_scale) : 0);
    made[side] = tape.cast(given, dtype);
    if (both[side] == Role::kWeight) lowered.weight_error_squares = distance_squares(tape, made[side], given);
  }
  const Tensor result = tape.allocate(dtype, shape_of(operands, product), "lowered product");
  tape.backend().run(multiplied(product, made[0], made[1], result), tape.stream());
  lowered.value = tape.cast(result, DType::kF32);
  return lowered;
}

}  // namespace mantissa
