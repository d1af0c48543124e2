// FaultSearch: examines what ops make, one by one, until one makes something that is not finite, and then tells what it
// was made of: outputs in a forward pass, or gradients in a backward pass.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/autograd/pass.h"
#include "core/autograd/precision.h"
#include "core/backend/backend.h"
#include "core/kernels/reduction/args.h"

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

// The first op that made something that was not finite: its output, or in a backward pass the gradient of an input or
// of a parameter.
struct NonFiniteOp {
  Pass pass = Pass::kForward;
  std::string op;     // "gelu", "add (number 2)": of the ops of that kind in its layer
  std::string layer;  // "blocks.3.mlp"; empty: the model itself
  std::string made;   // "its output", or "the gradient of layer_norm of 'blocks.0.norm'": of the op that made the input
  TensorStats stats;
  Shape shape;
  std::vector<ValueRange> inputs;      // outputs of other ops, then parameters
  std::optional<ValueRange> incoming;  // the gradient of the op's output, in a backward pass
  // The layers whose precision the tensor has: that of a linear op or of attention itself, else of those that the op
  // has read (in a backward pass: whose gradient it made).
  std::vector<std::string> stored_by;
};

// An op as a tape knows it. A slot names the output of an op; negative ones name nothing.
struct SearchedOp {
  Op op = Op::kLinear;
  std::string layer;
  int number = 1;           // among the ops of its kind in the layer, in the order of the forward pass
  int slot = -1;            // of its output
  std::vector<int> inputs;  // slots of what it has read
  std::vector<Parameter*> parameters;
};

class FaultSearch {
 public:
  FaultSearch(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // All of these block, and do nothing once something is found.
  // Looks at the op's output.
  void examine(const SearchedOp& op, const Tensor& output);
  // Takes down the range of the op's output, for when its gradients and its readers' are examined.
  void remember(const SearchedOp& op, const Tensor& output);
  // The op's backward function is about to be called with this gradient of its output.
  void enter_backward(const SearchedOp& op, const Tensor& d_out);
  // Look at a gradient that the backward function has made or added to: of an input, by slot, or of a parameter.
  void examine_gradient(const SearchedOp& op, int input, const Tensor& gradient);
  void examine_gradient(const SearchedOp& op, const Parameter& parameter);
  const std::optional<NonFiniteOp>& found() const { return found_; }

 private:
  ValueRange range_of(std::string name, const Tensor& tensor);
  // What was made, if it is not finite.
  std::optional<NonFiniteOp> judge(const SearchedOp& op, const Tensor& made);
  std::vector<ValueRange> inputs_of(const SearchedOp& op);
  void examine_gradient(const SearchedOp& op, const std::string& of, const Tensor& gradient,
                        const std::vector<int>& inputs);
  std::vector<std::string> stored_by(const SearchedOp& op, const std::vector<int>& inputs) const;

  Backend& backend_;
  Stream& stream_;
  std::map<int, ValueRange> ranges_;    // of outputs, by slot
  std::map<int, std::string> lowered_;  // layers of linear ops and attention, by the slot of their output
  std::optional<ValueRange> incoming_;
  std::optional<NonFiniteOp> found_;
};

}  // namespace mantissa
