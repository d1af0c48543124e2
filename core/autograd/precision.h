// Precision: plain data about dtypes of ops and products of linear layers. Built by amp/; core only obeys it.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "core/quant/tensor_format.h"
#include "core/tensor/dtype.h"

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
// The roles in this product.
constexpr ProductRoles roles_of(Product product) {
  if (product == Product::kForward) return {Role::kActivation, Role::kWeight};
  return {Role::kGradient, product == Product::kInputGradient ? Role::kWeight : Role::kActivation};
}
// Whether the product has such an operand.
constexpr bool multiplies(Product product, Role role) {
  return roles_of(product).a == role || roles_of(product).b == role;
}

// The formats to which a linear layer rounds the operands of its products.
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
    return std::ranges::any_of(formats_, [&](auto format) { return format && format->scaling == scaling; });
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
// Nothing for another text.
inline std::optional<Fp32Products> parse_fp32_products(std::string_view text) {
  return find_named(kAllFp32Products, text);
}

// Number of bf16 products for an fp32 product; 0 for kFp32 and kTf32.
constexpr int bf16_products(Fp32Products products) {
  return products == Fp32Products::kBf16x3 ? 3 : products == Fp32Products::kBf16x6 ? 6 : 0;
}

enum class Op : uint8_t {
  kEmbedding,
  kLinear,
  kAttention,
  kLayerNorm,
  kRmsNorm,
  kGelu,
  kSwiglu,
  kReluSquared,
  kRope,
  kAdd,
  kDropout,
  kCrossEntropy,
};
// How autocast chooses an op's compute dtype.
enum class CastRule : uint8_t {
  kLow,      // the low-precision dtype of the region
  kFp32,     // fp32; in a region of fp64, fp64
  kWidest,   // the widest of the inputs
  kAsGiven,  // the dtype of the first input
};

// An op that autocast knows.
struct OpEntry {
  std::string_view name;  // as written in configurations
  CastRule rule;          // the default, as in PyTorch's autocast
};

// By Op.
inline constexpr OpEntry kOps[] = {
    {"embedding", CastRule::kFp32},  {"linear", CastRule::kLow},           {"attention", CastRule::kLow},
    {"layer_norm", CastRule::kFp32}, {"rms_norm", CastRule::kFp32},        {"gelu", CastRule::kAsGiven},
    {"swiglu", CastRule::kAsGiven},  {"relu_squared", CastRule::kAsGiven}, {"rope", CastRule::kAsGiven},
    {"add", CastRule::kWidest},      {"dropout", CastRule::kAsGiven},      {"cross_entropy", CastRule::kFp32}};
inline constexpr int kOpCount = static_cast<int>(std::size(kOps));

constexpr std::string_view name(Op op) { return kOps[static_cast<size_t>(op)].name; }
std::optional<Op> parse_op(std::string_view text);  // nothing for a text that names no op

struct Precision {
  bool enabled = false;     // off: every op computes in the widest of its inputs
  DType low = DType::kF32;  // what kLow means
  std::array<CastRule, kOpCount> rules{};
  std::array<std::optional<DType>, kOpCount> forced{};  // per op; takes precedence over the rule
  LinearFormats linear{};                               // formats of the operands of linear layers' products
  Fp32Products fp32_products = Fp32Products::kFp32;     // of linear layers that compute in fp32, in any scope
};

// The precision of each layer, by its path ("blocks.3.mlp"). References stay valid as long as the policy.
class PrecisionPolicy {
 public:
  virtual ~PrecisionPolicy() = default;
  virtual const Precision& at(std::string_view layer_path) const = 0;  // the precision of the layer with this path
};

// One precision for every layer.
class UniformPrecision final : public PrecisionPolicy {
 public:
  explicit UniformPrecision(Precision precision = {}) : precision_(precision) {}
  const Precision& at(std::string_view) const override { return precision_; }

 private:
  Precision precision_;
};

// Thread-local override of the policy, set by nested scopes (AutocastScope); the innermost scope wins.
struct AutocastState {
  std::optional<bool> enabled{};
  std::optional<DType> dtype{};
};
AutocastState& autocast_state();  // of the calling thread

// The dtype in which `op` computes, given the layer's precision, the thread's scope and its first and widest input.
DType compute_dtype(const Precision& precision, const AutocastState& scope, Op op, DType first, DType widest_input);

// Formats of a linear layer's operands. Empty in a scope that switches autocast off or names a dtype.
LinearFormats linear_formats(const Precision& precision, const AutocastState& scope);

}  // namespace mantissa
