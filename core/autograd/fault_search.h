// FaultSearch: examines what ops make, one by one, until one makes something that is not finite, and then tells what it
// was made of.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"
#include "core/backend/backend.h"

namespace mantissa {

// Magnitudes of a tensor.
struct ValueRange {
  std::string name;  // "layer_norm of 'blocks.0.norm'", or a parameter's name
  DType dtype = DType::kF32;
  float largest = 0.0f;   // finite
  float smallest = 0.0f;  // that is not 0, rounded down to a power of two; 0: there is none
  int64_t elements = 0, zeros = 0, non_finite = 0;
};

// "layer_norm of 'blocks.0.norm' (bf16, magnitudes 0.000122 to 3.5, 2 of 64 zero)".
std::string to_text(const ValueRange& range);

// The first op whose output was not finite.
struct NonFiniteOp {
  std::string op;     // "gelu"
  std::string layer;  // "blocks.3.mlp"
  TensorStats stats;
  Shape shape;
  std::vector<ValueRange> inputs;  // outputs of other ops, then parameters
};

class FaultSearch {
 public:
  FaultSearch(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // `slot` names the output from now on, `inputs` those that the op has read; negative ones name nothing. Blocks.
  void examine(Op op, const std::string& layer, const Tensor& output, int slot, const std::vector<int>& inputs,
               const std::vector<Parameter*>& parameters);
  const std::optional<NonFiniteOp>& found() const { return found_; }

 private:
  ValueRange range_of(std::string name, const Tensor& tensor);

  Backend& backend_;
  Stream& stream_;
  std::map<int, ValueRange> ranges_;  // of outputs, by slot
  std::optional<NonFiniteOp> found_;
};

}  // namespace mantissa
