#include "core/autograd/linear_formats.h"

#include <algorithm>

namespace mantissa {
namespace {

constexpr std::string_view kProductNames[] = {"fprop", "dgrad", "wgrad"};
constexpr std::string_view kRoleNames[] = {"activation", "weight", "gradient"};

}  // namespace

std::string_view name(Product product) { return kProductNames[static_cast<size_t>(product)]; }
std::string_view name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Product> parse_product(std::string_view text) {
  for (const Product product : kAllProducts) {
    if (name(product) == text) return product;
  }
  return std::nullopt;
}

std::optional<Role> parse_role(std::string_view text) {
  for (const Role role : kAllRoles) {
    if (name(role) == text) return role;
  }
  return std::nullopt;
}

bool LinearFormats::rounds(Product product) const {
  return std::all_of(std::begin(kAllRoles), std::end(kAllRoles),
                     [&](Role role) { return !multiplies(product, role) || at(product, role); });
}

bool LinearFormats::uses(Scaling scaling) const {
  return std::any_of(formats_.begin(), formats_.end(),
                     [scaling](const auto& format) { return format && format->scaling == scaling; });
}

}  // namespace mantissa
