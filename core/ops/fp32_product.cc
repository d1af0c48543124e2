#include "core/ops/fp32_product.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/steps.h"

namespace mantissa {
namespace {

// Part indices of a and b in each product, from the smallest product to the largest, for three parts or two.
struct PartProduct {
  int a, b;
};
constexpr PartProduct kThreeParts[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
constexpr PartProduct kTwoParts[] = {{1, 0}, {0, 1}, {0, 0}};

SplitArgs split(const ProductDevice& device, const Tensor& x, int parts) {
  SplitArgs args{.x = x, .parts = {}};
  for (int part = 0; part < parts; ++part) args.parts[part] = device.make_part(x.shape());
  device.backend.run(args, device.stream);
  return args;
}

// `product` must have no activation and no bias gradient.
template <size_t kCount>
void add_up(const ProductDevice& device, GemmArgs product, int parts, const PartProduct (&products)[kCount]) {
  MANTISSA_CHECK(product.c.dtype() == DType::kF32, "[fp32_product] c must be fp32, got {}", product.c.dtype());
  const SplitArgs a = split(device, product.a, parts), b = split(device, product.b, parts);
  for (const PartProduct& part : products) {
    product.a = a.parts[part.a];
    product.b = b.parts[part.b];
    device.backend.run(product, device.stream);
    product.bias = Tensor();  // added by the first product
    product.mode = GradientMode::kAccumulate;
  }
}

void multiply_parts(const ProductDevice& device, const GemmArgs& args, Fp32Products products) {
  const auto plain = [&](const GemmArgs& product) { multiply_parts(device, product, products); };
  const auto run = [&](const auto& step) { device.backend.run(step, device.stream); };
  if (args.activation != GemmActivation::kNone) return gemm_in_steps(args, plain, run);
  if (args.bias_gradient.defined()) return gemm_then_bias_gradient(args, plain, run);
  if (products == Fp32Products::kBf16x3) return add_up(device, args, 2, kTwoParts);
  add_up(device, args, 3, kThreeParts);
}

}  // namespace

void multiply(const ProductDevice& device, GemmArgs args, Fp32Products products) {
  if (args.a.dtype() == DType::kF32 && products != Fp32Products::kFp32) {
    args.b_cache = nullptr;
    if (bf16_products(products) > 0) return multiply_parts(device, args, products);
    args.fp32_math = Fp32Math::kTf32;
  }
  device.backend.run(args, device.stream);
}

void multiply(Tape& tape, const GemmArgs& args, Fp32Products products) {
  multiply(
      {.backend = tape.backend(),
       .stream = tape.stream(),
       .make_part = [&](const Shape& shape) { return tape.allocate(DType::kBF16, shape, "part of an fp32 operand"); }},
      args, products);
}

}  // namespace mantissa
