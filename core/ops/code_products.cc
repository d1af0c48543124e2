#include "core/ops/code_products.h"

#include "core/kernels/gemm/args.h"

namespace mantissa {
namespace {

// Whether the product sums over the rows of the stored operand. It then reads the transposed codes.
constexpr bool sums_over_rows(Product product, Role role) {
  return product == Product::kWeightGradient || (product == Product::kInputGradient && role == Role::kWeight);
}

Fp8Gemm fp8_gemm(Product product, TensorFormat a, TensorFormat b, const LayerExtents& e) {
  switch (product) {
    case Product::kForward:
      return {.a = a, .b = b, .m = e.rows, .n = e.outputs, .k = e.inputs, .c = e.dtype, .has_bias = e.has_bias};
    case Product::kInputGradient:
      return {.a = a, .b = b, .m = e.rows, .n = e.inputs, .k = e.outputs, .c = e.dtype};
    case Product::kWeightGradient:
      break;
  }
  return {.a = a, .b = b, .m = e.outputs, .n = e.inputs, .k = e.rows, .c = DType::kF32};
}

}  // namespace

bool is_calibrating(const Tape& tape, TensorFormat format) {
  const DelayedScales* const scales = tape.options().delayed_scales;
  return format.scaling == Scaling::kDelayed && scales != nullptr && scales->calibrating();
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
