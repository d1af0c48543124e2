#include "core/autograd/fp32_products.h"

namespace mantissa {
namespace {

constexpr std::string_view kNames[] = {"fp32", "tf32", "bf16x3", "bf16x6"};

}  // namespace

std::string_view name(Fp32Products products) { return kNames[static_cast<size_t>(products)]; }

std::optional<Fp32Products> parse_fp32_products(std::string_view text) {
  for (const Fp32Products products : kAllFp32Products) {
    if (name(products) == text) return products;
  }
  return std::nullopt;
}

}  // namespace mantissa
