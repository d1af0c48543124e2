#include "core/autograd/tape.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

// Calls `restore` at the end of a scope, also when an exception leaves it.
template <typename Restore>
struct AtExit {
  Restore restore;
  ~AtExit() { restore(); }
};

}  // namespace

Tape::Tape(Backend& backend, Stream& stream, Arena& arena, const PrecisionPolicy& policy, DerivedWeights& weights,
           TapeOptions options)
    : backend_(backend),
      stream_(stream),
      arena_(arena),
      policy_(policy),
      weights_(weights),
      options_(std::move(options)),
      precision_(&policy.at("")),
      search_(backend, stream, weights) {}

Tape::~Tape() {
  const auto give_back = [](const Node& node) {
    for (Parameter* parameter : node.parameters) --parameter->pending_uses;
  };
  give_back(running_);  // non-empty if its backward function threw
  for (const Node& node : nodes_) give_back(node);
}

Tape::LayerGuard::LayerGuard(Tape& tape, std::string_view name) : tape_(tape), parent_length_(tape.layer_.size()) {
  if (!tape.layer_.empty()) tape.layer_ += '.';
  tape.layer_ += name;
  tape.precision_ = &tape.policy_.at(tape.layer_);
}

Tape::LayerGuard::~LayerGuard() {
  tape_.layer_.resize(parent_length_);
  tape_.precision_ = &tape_.policy_.at(tape_.layer_);
}

Tensor Tape::cast(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  Tensor copy = allocate(dtype, tensor.shape(), "cast");
  backend_.run(CastArgs{.src = tensor, .dst = copy}, stream_);
  return copy;
}

Var Tape::record(Op op, Tensor output, const std::vector<Var>& inputs, std::vector<Parameter*> parameters,
                 Backward backward) {
  std::erase_if(parameters,
                [](const Parameter* parameter) { return parameter == nullptr || !parameter->is_trainable; });
  if (!is_second_run_ && options_.after_op) options_.after_op(layer_, name(op), output);
  if (options_.check_outputs) {  // keeps only the output's slot
    const int slot = static_cast<int>(slots_.size());
    slots_.push_back({output.dtype(), output.shape(), {}});
    search_.examine(searched(op, slot, inputs, parameters), output);
    return Var{std::move(output), slot};
  }
  if (!training()) return Var{std::move(output)};
  if (is_recording()) {
    Var made = push_node(std::move(output), inputs, parameters, std::move(backward));
    if (made.slot >= 0 && shows_gradients()) {
      nodes_.back().source = searched(op, made.slot, inputs, parameters);
      if (options_.check_gradients) search_.remember(*nodes_.back().source, made.value);
    }
    return made;
  }
  for (const Var& input : inputs) {
    MANTISSA_CHECK(input.slot < 0,
                   "[tape.recompute] a segment must read no value that takes a gradient but its input; op {} of layer "
                   "'{}' reads another",
                   name(op), layer_);
  }
  dropped_parameters_->insert(dropped_parameters_->end(), parameters.begin(), parameters.end());
  if (options_.check_gradients) last_dropped_ = searched(op, -1, inputs, parameters);
  return Var{std::move(output)};
}

Var Tape::push_node(Tensor output, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters,
                    Backward backward) {
  bool needs_gradient = !parameters.empty();
  for (const Var& input : inputs) needs_gradient |= input.slot >= 0;
  if (!needs_gradient) return Var{std::move(output)};

  const int slot = static_cast<int>(slots_.size());
  slots_.push_back({output.dtype(), output.shape(), {}});
  for (Parameter* parameter : parameters) ++parameter->pending_uses;
  nodes_.push_back({slot, parameters, std::move(backward)});
  return Var{std::move(output), slot};
}

SearchedOp Tape::searched(Op op, int slot, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters) {
  SearchedOp result{
      .op = op, .layer = layer_, .number = ++searched_[{layer_, op}], .slot = slot, .parameters = parameters};
  for (const Var& input : inputs) result.inputs.push_back(input.slot);
  return result;
}

void Tape::plant_fault(const SearchedOp& op) {
  if (!options_.after_backward) return;
  for (const int input : op.inputs) {
    if (input < 0 || !slots_[static_cast<size_t>(input)].gradient.defined()) continue;
    return options_.after_backward(op.layer, name(op.op), slots_[static_cast<size_t>(input)].gradient);
  }
}

GradientTarget Tape::gradient_target(const Var& input) {
  MANTISSA_CHECK(input.slot >= 0, "[tape] a gradient was asked for a value that takes none");
  Slot& slot = slots_[static_cast<size_t>(input.slot)];
  if (!slot.gradient.defined()) {
    slot.gradient = allocate(slot.dtype, slot.shape, "gradient");
    return {slot.gradient, GradientMode::kWrite};
  }
  if (!slot.gradient.unique()) {  // shared by two inputs (residual add): adding in place would change the other's
    Tensor copy = allocate(slot.dtype, slot.shape, "gradient");
    backend_.copy(slot.gradient, copy, stream_);
    slot.gradient = std::move(copy);
  }
  return {slot.gradient, GradientMode::kAccumulate};
}

void Tape::give_gradient(const Var& input, Tensor gradient) {
  if (input.slot < 0) return;
  Slot& slot = slots_[static_cast<size_t>(input.slot)];
  MANTISSA_CHECK(gradient.numel() == slot.shape.numel(), "[tape] a gradient of {} elements for a value of shape {}",
                 gradient.numel(), slot.shape);
  if (!slot.gradient.defined()) {
    slot.gradient = cast(gradient, slot.dtype).view(slot.shape);
    return;
  }
  const GradientTarget target = gradient_target(input);
  backend_.run(AddArgs{.a = target.tensor, .b = gradient.view(slot.shape), .y = target.tensor}, stream_);
}

GradientTarget Tape::gradient_target(Parameter& parameter) {
  if (!parameter.is_trainable) {
    return {allocate(wide_of(parameter.working_dtype), parameter.shape, "gradient of a frozen parameter")};
  }
  MANTISSA_CHECK(parameter.gradient.defined(), "[tape] parameter '{}' has no gradient bound", parameter.name);
  const GradientMode mode = parameter.gradient_written ? GradientMode::kAccumulate : GradientMode::kWrite;
  parameter.gradient_written = true;
  return {parameter.gradient, mode};
}

void Tape::backward(const Var& loss) {
  MANTISSA_CHECK(training() && !options_.check_outputs,
                 "[tape.backward] the tape was made for evaluation, or to examine outputs");
  MANTISSA_CHECK(!spent_, "[tape.backward] called twice on one tape");
  MANTISSA_CHECK(loss.slot >= 0 && loss.value.numel() == 1, "[tape.backward] expected a recorded loss of one element");
  MANTISSA_CHECK(options_.loss_gradient.defined(), "[tape.backward] the tape was made without a loss gradient");
  spent_ = true;
  slots_[static_cast<size_t>(loss.slot)].gradient = options_.loss_gradient;
  while (!nodes_.empty()) {
    running_ = std::move(nodes_.back());  // if its backward function throws, ~Tape() returns its uses
    nodes_.pop_back();
    Tensor d_out = std::move(slots_[static_cast<size_t>(running_.slot)].gradient);
    std::optional<SearchedOp> shown;
    if (d_out.defined()) {
      shown = std::move(running_.source);
      if (shown && options_.check_gradients) search_.enter_backward(*shown, d_out);
      running_.backward(*this, std::move(d_out));
      if (shown) plant_fault(*shown);
    }
    const std::vector<Parameter*> parameters = std::move(running_.parameters);
    running_ = {};  // frees the activations before callbacks run
    for (Parameter* parameter : parameters) {
      if (--parameter->pending_uses == 0 && options_.gradient_ready) options_.gradient_ready(*parameter);
    }
    if (shown && options_.check_gradients) {
      search_.examine_gradients(
          *shown, [this](int slot) -> const Tensor& { return slots_[static_cast<size_t>(slot)].gradient; });
    }
    if (search_.found()) return;
    if (options_.between_nodes) options_.between_nodes();
  }
}

// A segment is one node. Its backward function records the segment's own nodes in its place, and the backward pass
// continues with them. Gradients, use counts and hooks are the same as without recomputation.
Var Tape::recompute(Var input, Segment segment) {
  if (!recomputes() || !is_recording()) return segment(*this, std::move(input));
  const Position begin = position();
  std::vector<Parameter*> parameters;
  Tensor output;
  {
    dropped_parameters_ = &parameters;  // ops run without being recorded; the parameters that they use go here
    const AtExit record_again{[this] { dropped_parameters_ = nullptr; }};
    output = segment(*this, Var{input.value}).value;
  }
  Var made = push_node(std::move(output), {input}, parameters,
                       [begin, input, segment = std::move(segment)](Tape& tape, Tensor d_out) {
                         const AtExit return_here{[&tape, here = tape.position()] {
                           tape.is_second_run_ = false;
                           tape.go_to(here);
                         }};
                         tape.go_to(begin);
                         tape.is_second_run_ = true;
                         tape.searched_.clear();  // each layer is in one segment, so its op numbers start again
                         const Var again = segment(tape, input);
                         MANTISSA_CHECK(again.slot >= 0 && again.slot != input.slot,
                                        "[tape.recompute] a segment must return a value that its own ops made");
                         tape.slots_[static_cast<size_t>(again.slot)].gradient = std::move(d_out);
                       });
  if (options_.check_gradients) {  // ops that read the output identify it by its op
    last_dropped_.slot = made.slot;
    search_.remember(last_dropped_, made.value);
  }
  return made;
}

Var Tape::remakeable(Var y, Remake remake) const {
  if (y.slot >= 0 && options_.recompute == Recompute::kSelective) {
    y.remake = std::make_shared<const Remake>(std::move(remake));
  }
  return y;
}

}  // namespace mantissa
