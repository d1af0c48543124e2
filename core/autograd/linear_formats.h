// LinearFormats: the formats to which a linear layer rounds the operands of its three products. Plain data that ops
// read; built by amp/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

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

std::string_view name(Product product);  // "fprop", "dgrad", "wgrad": as in configurations
std::string_view name(Role role);        // "activation", "weight", "gradient"
std::optional<Product> parse_product(std::string_view text);
std::optional<Role> parse_role(std::string_view text);

// Whether the product has such an operand.
constexpr bool multiplies(Product product, Role role) {
  switch (product) {
    case Product::kForward:
      return role != Role::kGradient;
    case Product::kInputGradient:
      return role != Role::kActivation;
    case Product::kWeightGradient:
      return role != Role::kWeight;
  }
  return false;
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
  bool rounds(Product product) const;
  // Whether any operand is rounded.
  bool any() const { return *this != LinearFormats(); }
  // Whether any operand has this scaling.
  bool uses(Scaling scaling) const;
  bool operator==(const LinearFormats&) const = default;

 private:
  static constexpr size_t index(Product product, Role role) {
    return static_cast<size_t>(product) * std::size(kAllRoles) + static_cast<size_t>(role);
  }
  std::array<std::optional<TensorFormat>, std::size(kAllProducts) * std::size(kAllRoles)> formats_{};
};

}  // namespace mantissa
