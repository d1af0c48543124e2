// Fp32Products: how linear layers that compute in fp32 make their products. Plain data that ops read; built by amp/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mantissa {

enum class Fp32Products : uint8_t {
  kFp32,    // operands as they are
  kTf32,    // operands rounded to tf32, see Fp32Math
  kBf16x3,  // sum of three products of bf16 matrices, see core/ops/fp32_product.h
  kBf16x6,  // sum of six
};
inline constexpr Fp32Products kAllFp32Products[] = {Fp32Products::kFp32, Fp32Products::kTf32, Fp32Products::kBf16x3,
                                                    Fp32Products::kBf16x6};

std::string_view name(Fp32Products products);  // "fp32", "tf32", "bf16x3", "bf16x6": as in configurations
std::optional<Fp32Products> parse_fp32_products(std::string_view text);

// Number of bf16 products that make one fp32 product; 0 for kFp32 and kTf32.
constexpr int bf16_products(Fp32Products products) {
  return products == Fp32Products::kBf16x3 ? 3 : products == Fp32Products::kBf16x6 ? 6 : 0;
}

}  // namespace mantissa
