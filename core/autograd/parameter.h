// Parameters of a model: names, shapes, initial values, and the tensors that training binds to them.
#pragma once

#include <functional>
#include <unordered_map>

#include "core/tensor/tensor.h"

namespace mantissa {

// How a parameter's first values are drawn. Element e depends on (seed, name, e) only: every sharding starts alike.
struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  float stddev = 0.0f;  // kNormal; kUniform: the bound, values lie in [-bound, bound)
};

enum class WeightDecay : uint8_t { kNo, kYes };
enum class ParameterRole : uint8_t {
  kEmbedding,  // a table that is read by rows; also when tied to the head
  kOther,
};

// A named tensor of a model, and its gradient where training changes it.
struct Parameter {
  std::string name;  // "blocks.3.mlp.up.weight": layer path, then role
  int index = 0;     // position in its ParameterSet
  Shape shape;
  Init init;
  WeightDecay decay = WeightDecay::kNo;
  ParameterRole role = ParameterRole::kOther;
  std::string
      consumer;  // layer path of the op whose precision decides working_dtype; empty: layer(). A tied head sets it
  bool is_trainable = true;           // false: frozen, without gradient and optimizer state
  DType working_dtype = DType::kF32;  // of `weight`; decided by the precision policy before the buffers are bound

  // Bound by the buffers that own them; both have `shape`. Frozen parameters have no gradient. Call await_weight before
  // work is queued that reads the weight.
  Tensor weight;    // working copy, working_dtype
  Tensor gradient;  // wide_of(working_dtype), a view into a flat bucket from birth

  std::function<void()> await_weight;  // empty: the weight never comes from other ranks
  uint64_t version = 0;                // counts changes of `weight`
  int pending_uses = 0;                // recorded by a forward pass, not yet consumed by its backward pass
  bool gradient_written = false;       // whether this step has written `gradient`: decides write or accumulate

  int64_t numel() const { return shape.numel(); }
  // The layer path: the name without its last component.
  std::string_view layer() const { return std::string_view(name).substr(0, name.rfind('.')); }
  std::string_view precision_layer() const { return consumer.empty() ? layer() : std::string_view(consumer); }
};

// Owns a model's parameters in order of first use. Addresses are stable.
class ParameterSet {
 public:
  // ContractError if the name is taken. Decay defaults to matrices only.
  Parameter& add(std::string name, Shape shape, Init init);

  int size() const { return static_cast<int>(parameters_.size()); }
  Parameter& operator[](int index) { return *parameters_[static_cast<size_t>(index)]; }
  const Parameter& operator[](int index) const { return *parameters_[static_cast<size_t>(index)]; }
  // nullptr if the name is unknown.
  Parameter* find(std::string_view name) const;
  int64_t numel() const;
  int64_t trainable_numel() const;

  // Start of a step: the next gradient of each parameter is written, not accumulated.
  void forget_gradients() {
    for (const auto& parameter : parameters_) parameter->gradient_written = false;
  }

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::unordered_map<std::string_view, Parameter*> by_name_;  // keys are the parameters' own names
};

// Writes elements [begin, begin + count) of the parameter's initial values to `out`.
void initial_values(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t count, float* out);

}  // namespace mantissa
