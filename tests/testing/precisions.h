// Precisions for tests that must not depend on amp/: the rules of PyTorch's autocast.
#pragma once

#include <map>
#include <string>

#include "core/autograd/precision.h"

namespace mantissa::testing {

inline Precision autocast(DType low) {
  Precision precision;
  precision.enabled = true;
  precision.low = low;
  const auto rule = [&](Op op) -> CastRule& { return precision.rules[static_cast<size_t>(op)]; };
  rule(Op::kEmbedding) = CastRule::kFp32;
  rule(Op::kLinear) = CastRule::kLow;
  rule(Op::kAttention) = CastRule::kLow;
  rule(Op::kLayerNorm) = CastRule::kFp32;
  rule(Op::kRmsNorm) = CastRule::kFp32;
  rule(Op::kGelu) = CastRule::kAsGiven;
  rule(Op::kSwiglu) = CastRule::kAsGiven;
  rule(Op::kReluSquared) = CastRule::kAsGiven;
  rule(Op::kRope) = CastRule::kAsGiven;
  rule(Op::kAdd) = CastRule::kWidest;
  rule(Op::kDropout) = CastRule::kAsGiven;
  rule(Op::kCrossEntropy) = CastRule::kFp32;
  return precision;
}

// A separate precision for some layers, by exact path, and one for all others.
class PrecisionByLayer final : public PrecisionPolicy {
 public:
  explicit PrecisionByLayer(Precision other) : other_(other) {}
  Precision& operator[](const std::string& path) { return layers_.emplace(path, other_).first->second; }
  const Precision& at(std::string_view layer_path) const override {
    const auto found = layers_.find(layer_path);
    return found == layers_.end() ? other_ : found->second;
  }

 private:
  Precision other_;
  std::map<std::string, Precision, std::less<>> layers_;
};

}  // namespace mantissa::testing
