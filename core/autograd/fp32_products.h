// Fp32Products: how the products of linear layers that compute in fp32 are made. Plain data that ops read; built by
// amp/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mantissa {

enum class Fp32Products : uint8_t {
  kFp32,    // of the numbers as they are
  kTf32,    // of numbers rounded to tf32, see Fp32Math
  kBf16x3,  // as the sum of three products of bf16 numbers, see core/ops/fp32_product.h
  kBf16x6,  // of six
};
inline constexpr Fp32Products kAllFp32Products[] = {Fp32Products::kFp32, Fp32Products::kTf32, Fp32Products::kBf16x3,
                                                    Fp32Products::kBf16x6};

std::string_view name(Fp32Products products);  // "fp32", "tf32", "bf16x3", "bf16x6": as in configurations
std::optional<Fp32Products> parse_fp32_products(std::string_view text);

// How many products of bf16 numbers make one of fp32 numbers; 0 where none does.
constexpr int bf16_products(Fp32Products products) {
  return products == Fp32Products::kBf16x3 ? 3 : products == Fp32Products::kBf16x6 ? 6 : 0;
}

}  // namespace mantissa
