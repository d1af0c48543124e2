#include "core/autograd/linear_formats.h"

#include <algorithm>

namespace mantissa {
namespace {

constexpr std::string_view kProductNames[] = {"fprop", "dgrad", "wgrad"};
constexpr std::string_view kRoleNames[] = {"activation", "weight", "gradient"};
constexpr std::string_view kFp32ProductNames[] = {"fp32", "tf32", "bf16x3", "bf16x6"};

// The value whose name is `text`; names are in the order of the enum.
template <typename Enum, size_t kCount>
std::optional<Enum> parse(const std::string_view (&names)[kCount], std::string_view text) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  if (found == std::end(names)) return std::nullopt;
  return static_cast<Enum>(found - std::begin(names));
}

}  // namespace

std::string_view name(Product product) { return kProductNames[static_cast<size_t>(product)]; }
std::string_view name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }
std::string_view name(Fp32Products products) { return kFp32ProductNames[static_cast<size_t>(products)]; }

std::optional<Product> parse_product(std::string_view text) { return parse<Product>(kProductNames, text); }
std::optional<Role> parse_role(std::string_view text) { return parse<Role>(kRoleNames, text); }
std::optional<Fp32Products> parse_fp32_products(std::string_view text) {
  return parse<Fp32Products>(kFp32ProductNames, text);
}

bool LinearFormats::uses(Scaling scaling) const {
  return std::any_of(formats_.begin(), formats_.end(),
                     [scaling](const auto& format) { return format && format->scaling == scaling; });
}

}  // namespace mantissa
