// Precision: plain data that ops read to learn the dtype to compute in. Built by amp/; core only obeys it.
#pragma once

#include <iterator>

#include "core/autograd/linear_formats.h"
#include "core/tensor/dtype.h"

namespace mantissa {

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

// Thread-local override of the policy, set by nested scopes (amp::AutocastScope); the innermost scope wins.
struct AutocastState {
  std::optional<bool> enabled{};
  std::optional<DType> dtype{};
};
AutocastState& autocast_state();  // that of the calling thread

// The dtype in which `op` computes, given the layer's precision, the thread's scope and its first and widest input.
DType compute_dtype(const Precision& precision, const AutocastState& scope, Op op, DType first, DType widest_input);

// Formats of a linear layer's operands. Empty in a scope that switches autocast off or names a dtype.
LinearFormats linear_formats(const Precision& precision, const AutocastState& scope);

}  // namespace mantissa
