// FaultSearch: finds the first op with a non-finite output or, in a backward pass, gradient. Reports it and its inputs.
#pragma once

#include "core/autograd/derived_weights.h"
#include "core/autograd/precision.h"
#include "core/kernels/reduction/records.h"

namespace mantissa {

enum class Pass : uint8_t { kForward, kBackward };  // direction of a pass over a model

// Magnitudes of a tensor.
struct ValueRange {
  std::string name;  // "layer_norm of 'blocks.0.norm'", or a parameter's name
  DType dtype = DType::kF32;
  float largest = 0.0f;   // finite
  float smallest = 0.0f;  // nonzero, rounded down to a power of two; 0: there is none
  int64_t elements = 0, zeros = 0, non_finite = 0;
};

// "layer_norm of 'blocks.0.norm' (bf16, magnitudes 0.000122 to 3.5, 2 of 64 zero)".
std::string to_text(const ValueRange& range);

// The first op with a non-finite result: its output, or in a backward pass the gradient of an input or of a parameter.
struct NonFiniteOp {
  Pass pass = Pass::kForward;
  std::string op;     // "gelu", "add (number 2)": the number counts ops of that kind in the layer
  std::string layer;  // "blocks.3.mlp"; empty: the model itself
  std::string made;   // "its output", or "the gradient of layer_norm of 'blocks.0.norm'" (the op that made the input)
  TensorStats stats;
  Shape shape;
  std::vector<ValueRange> inputs;        // outputs of other ops, then parameters
  std::optional<ValueRange> incoming{};  // the gradient of the op's output, in a backward pass
  // Layers whose precision determines the tensor's dtype. For linear ops and attention: their own layer. For other ops:
  // the linear and attention layers that made its inputs (backward: the input whose gradient this is).
  std::vector<std::string> stored_by{};
};

// An op as a tape knows it. A slot identifies the output of an op; a negative slot means none.
struct SearchedOp {
  Op op = Op::kLinear;
  std::string layer;
  int number = 1;             // among the ops of its kind in the layer, in the order of the forward pass
  int slot = -1;              // its output's
  std::vector<int> inputs{};  // slots of the outputs that it reads
  std::vector<Parameter*> parameters;
};

class FaultSearch {
 public:
  FaultSearch(Backend& backend, Stream& stream, DerivedWeights& weights)
      : backend_(backend), stream_(stream), weights_(weights) {}

  // All of these block, and do nothing once something is found.
  // Checks the op's output.
  void examine(const SearchedOp& op, const Tensor& output);
  // Stores the range of the op's output, for reports about its gradient and about ops that read it.
  void remember(const SearchedOp& op, const Tensor& output);
  // Call before the op's backward function runs. d_out: the gradient of its output.
  void enter_backward(const SearchedOp& op, const Tensor& d_out);
  // Checks the gradients that the backward function made, of inputs and parameters. gradient_of(slot) may be undefined.
  void examine_gradients(const SearchedOp& op, const std::function<const Tensor&(int slot)>& gradient_of);
  const std::optional<NonFiniteOp>& found() const { return found_; }

 private:
  ValueRange range_of(std::string name, const Tensor& tensor);
  // Returns a report if `made` is not finite.
  std::optional<NonFiniteOp> judge(const SearchedOp& op, const Tensor& made);
  std::vector<ValueRange> inputs_of(const SearchedOp& op);
  std::vector<std::string> stored_by(const SearchedOp& op, const std::vector<int>& inputs) const;

  Backend& backend_;
  Stream& stream_;
  DerivedWeights& weights_;
  std::map<int, ValueRange> ranges_;    // of outputs, by slot
  std::map<int, std::string> lowered_;  // layers of linear ops and attention, by output slot
  std::optional<ValueRange> incoming_;
  std::optional<NonFiniteOp> found_;
};

}  // namespace mantissa
