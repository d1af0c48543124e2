#include "core/ops/fp32_product.h"

#include <algorithm>

#include "core/backend/gemm_steps.h"

namespace mantissa {
namespace {

// Which parts of a and b are multiplied, from the smallest product to the largest: those for three of both, or for two.
struct PartProduct {
  int a, b;
};
constexpr PartProduct kThreeParts[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
constexpr PartProduct kTwoParts[] = {{1, 0}, {0, 1}, {0, 0}};

SplitArgs split(Tape& tape, const Tensor& x, int parts) {
  SplitArgs args{.x = x, .parts = {}};
  for (int part = 0; part < parts; ++part) {
    args.parts[part] = tape.allocate(DType::kBF16, x.shape(), "part of an fp32 operand");
  }
  tape.backend().split(args, tape.stream());
  return args;
}

// Without an activation or a bias gradient.
template <size_t kCount>
void add_up(Tape& tape, GemmArgs product, int parts, const PartProduct (&products)[kCount]) {
  MANTISSA_CHECK(product.c.dtype() == DType::kF32, "[fp32_product] c must be fp32, got {}", product.c.dtype());
  const SplitArgs a = split(tape, product.a, parts), b = split(tape, product.b, parts);
  for (const PartProduct& part : products) {
    product.a = a.parts[part.a];
    product.b = b.parts[part.b];
    tape.backend().gemm(product, tape.stream());
    product.bias = Tensor();  // it is in the first product
    product.mode = GradientMode::kAccumulate;
  }
}

void multiply_parts(Tape& tape, const GemmArgs& args, Fp32Products products) {
  const auto plain = [&](const GemmArgs& product) { multiply_parts(tape, product, products); };
  if (args.activation != GemmActivation::kNone) {
    return gemm_in_steps(
        args, plain, [&](const GeluForwardArgs& gelu) { tape.backend().gelu_forward(gelu, tape.stream()); },
        [&](const GeluBackwardArgs& gelu) { tape.backend().gelu_backward(gelu, tape.stream()); });
  }
  if (args.bias_gradient.defined()) {
    return gemm_then_bias_gradient(args, plain,
                                   [&](const ColumnSumArgs& sums) { tape.backend().column_sum(sums, tape.stream()); });
  }
  if (products == Fp32Products::kBf16x3) return add_up(tape, args, 2, kTwoParts);
  add_up(tape, args, 3, kThreeParts);
}

}  // namespace

void multiply(Tape& tape, GemmArgs args, Fp32Products products) {
  if (args.a.dtype() == DType::kF32 && products != Fp32Products::kFp32) {
    args.b_cache = nullptr;
    if (bf16_products(products) > 0) return multiply_parts(tape, args, products);
    args.fp32_math = Fp32Math::kTf32;
  }
  tape.backend().gemm(args, tape.stream());
}

}  // namespace mantissa
