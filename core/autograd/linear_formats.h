// How a linear layer makes its three products: the formats to which it rounds their operands, and the method for fp32
// operands. Plain data that ops read; built by amp/.
#pragma once

#include <algorithm>
#include <array>

#include "core/quant/tensor_format.h"

namespace mantissa {

// The products of y = x W^T.
enum class Product : uint8_t {
  kForward,         // y = x W^T, sums over the inputs
  kInputGradient,   // dx = dy W, over the outputs
  kWeightGradient,  // dW = dy^T x, over the rows
};
enum class Role : uint8_t { kActivation, kWeight, kGradient };  // x, W, dy
inline constexpr Product kAllProducts[] = {Product::kForward, Product::kInputGradient, Product::kWeightGradient};
inline constexpr Role kAllRoles[] = {Role::kActivation, Role::kWeight, Role::kGradient};

// Names as in configurations.
inline constexpr std::string_view kProductNames[] = {"fprop", "dgrad", "wgrad"};
inline constexpr std::string_view kRoleNames[] = {"activation", "weight", "gradient"};
constexpr std::string_view name(Product product) { return kProductNames[static_cast<size_t>(product)]; }
constexpr std::string_view name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }
inline std::optional<Product> parse_product(std::string_view text) { return find_named(kAllProducts, text); }
inline std::optional<Role> parse_role(std::string_view text) { return find_named(kAllRoles, text); }

// Operand a and operand b of a product.
struct ProductRoles {
  Role a, b;
};
constexpr ProductRoles roles_of(Product product) {
  if (product == Product::kForward) return {Role::kActivation, Role::kWeight};
  return {Role::kGradient, product == Product::kInputGradient ? Role::kWeight : Role::kActivation};
}
// Whether the product has such an operand.
constexpr bool multiplies(Product product, Role role) {
  return roles_of(product).a == role || roles_of(product).b == role;
}

class LinearFormats {
 public:
  // std::nullopt: the operand stays in the dtype that the layer computes in.
  std::optional<TensorFormat> at(Product product, Role role) const { return formats_[index(product, role)]; }
  // No effect where the product has no such operand.
  void set(Product product, Role role, std::optional<TensorFormat> format) {
    if (multiplies(product, role)) formats_[index(product, role)] = format;
  }
  // Whether both operands of the product are rounded.
  bool rounds(Product product) const { return at(product, roles_of(product).a) && at(product, roles_of(product).b); }
  bool any() const { return *this != LinearFormats(); }  // whether any operand is rounded
  // Whether any operand has this scaling.
  bool uses(Scaling scaling) const {
    return std::any_of(formats_.begin(), formats_.end(),
                       [&](auto format) { return format && format->scaling == scaling; });
  }
  bool operator==(const LinearFormats&) const = default;

 private:
  static constexpr size_t index(Product product, Role role) {
    return static_cast<size_t>(product) * std::size(kAllRoles) + static_cast<size_t>(role);
  }
  std::array<std::optional<TensorFormat>, std::size(kAllProducts) * std::size(kAllRoles)> formats_{};
};

// How linear layers that compute in fp32 make their products.
enum class Fp32Products : uint8_t {
  kFp32,    // operands as they are
  kTf32,    // operands rounded to tf32, see Fp32Math
  kBf16x3,  // sum of three products of bf16 matrices, see core/ops/fp32_product.h
  kBf16x6,  // sum of six
};
inline constexpr Fp32Products kAllFp32Products[] = {Fp32Products::kFp32, Fp32Products::kTf32, Fp32Products::kBf16x3,
                                                    Fp32Products::kBf16x6};

inline constexpr std::string_view kFp32ProductNames[] = {"fp32", "tf32", "bf16x3", "bf16x6"};
constexpr std::string_view name(Fp32Products products) { return kFp32ProductNames[static_cast<size_t>(products)]; }
inline std::optional<Fp32Products> parse_fp32_products(std::string_view text) {
  return find_named(kAllFp32Products, text);
}

// Number of bf16 products for an fp32 product; 0 for kFp32 and kTf32.
constexpr int bf16_products(Fp32Products products) {
  return products == Fp32Products::kBf16x3 ? 3 : products == Fp32Products::kBf16x6 ? 6 : 0;
}

}  // namespace mantissa
