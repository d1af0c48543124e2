// Tape: nodes in execution order. The backward pass pops them in reverse and frees activations as it goes.
//
// Ops (core/ops) cast their inputs, run a kernel and record one node. A node's backward function gets the gradient of
// its output, which has the output's dtype, and hands gradients to its inputs and parameters.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/delayed_scales.h"
#include "core/autograd/fault_search.h"
#include "core/autograd/operand_caches.h"
#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"
#include "core/autograd/product_observer.h"
#include "core/autograd/recompute.h"
#include "core/autograd/rounded_weights.h"
#include "core/autograd/weight_cast_cache.h"
#include "core/backend/backend.h"
#include "core/tensor/arena.h"

namespace mantissa {

class Tape;

// Makes a value again in the backward pass, bit for bit, of what is kept anyway.
using Remake = std::function<Tensor(Tape& tape)>;

// A value on a tape. Without a slot it takes no gradient (inputs, evaluation).
struct Var {
  Tensor value;
  int slot = -1;
  std::shared_ptr<const Remake> remake{};  // nullptr: who needs the value later must keep it
};

// Where a gradient goes and how: write it, or add to what is there.
struct GradientTarget {
  Tensor tensor;
  GradientMode mode = GradientMode::kWrite;
};

enum class TapeMode : uint8_t { kTraining, kEvaluation };  // evaluation records nothing and drops nothing out

// Names the random choices of one micro-batch: see DropoutArgs.
struct RandomKey {
  uint64_t seed = 0;
  Tensor step{};              // (1) i32, on the device; needed where something is drawn
  uint32_t first_sample = 0;  // index of the micro-batch's first sample in the step's global batch
  int64_t samples = 0;        // of the micro-batch; needed where gradients are rounded stochastically
};

struct TapeOptions {
  TapeMode mode = TapeMode::kTraining;
  RandomKey random{};
  // (1) fp32, on the device: the gradient of the loss, which the backward pass starts from. Loss scale / non-ignored
  // tokens of the global batch. Needed in training.
  Tensor loss_gradient{};
  Recompute recompute = Recompute::kNone;
  OperandCaches* operand_caches = nullptr;           // of the weights, where several passes read them; nullptr: none
  DelayedScales* delayed_scales = nullptr;           // nullptr: delayed scaling is done as current scaling
  RoundedWeights* rounded_weights = nullptr;         // nullptr: weights are rounded again in every pass
  ProductObserver* observer = nullptr;               // of linear layers' products; nullptr: none
  bool check_outputs = false;                        // examine every op's output; slow, and no backward pass follows
  bool check_gradients = false;                      // examine what every op's backward function makes; slow
  std::function<void(Parameter&)> gradient_ready{};  // after the last use of a parameter in the backward pass
  std::function<void()> between_nodes{};             // lets communication progress during the backward pass
  std::function<void(std::string_view layer, std::string_view op, Tensor& output)>
      after_op{};  // test-only: fault injection
  // Test-only as well: after the op's backward function, the gradient of its first input that takes one.
  std::function<void(std::string_view layer, std::string_view op, Tensor& gradient)> after_backward{};
};

class Tape {
 public:
  using Backward = std::function<void(Tape& tape, Tensor d_out)>;
  using Segment = std::function<Var(Tape& tape, Var input)>;

  Tape(Backend& backend, Stream& stream, Arena& arena, const PrecisionPolicy& policy, WeightCastCache& casts,
       TapeOptions options = {});
  // Releases what a forward pass without a backward left behind, parameter use counts included.
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // --- for models
  // Enters the layer `name` below the current one for the guard's life time.
  class LayerGuard {
   public:
    LayerGuard(Tape& tape, std::string_view name);
    ~LayerGuard();
    LayerGuard(const LayerGuard&) = delete;
    LayerGuard& operator=(const LayerGuard&) = delete;

   private:
    Tape& tape_;
    size_t parent_length_;
  };
  const TapeOptions& options() const { return options_; }
  bool training() const { return options_.mode == TapeMode::kTraining; }
  const std::string& layer() const { return layer_; }
  // Whether somebody looks at every op's output (check_outputs, after_op, after_backward). Ops that do the work of
  // several in one kernel then do it one by one. For check_gradients they do not: it needs the memory of a step.
  bool shows_every_op() const {
    return options_.check_outputs || options_.after_op != nullptr || options_.after_backward != nullptr;
  }
  // Whether recompute() drops what a segment makes.
  bool recomputes() const { return training() && !options_.check_outputs && options_.recompute == Recompute::kFull; }
  // segment(input), of which nothing but `input` is kept if recomputes(): the backward pass runs the segment a second
  // time, with the layer path, the autocast scope and the random sites of the first, and then takes its derivative.
  // Hooks see the ops of the first run only. `segment` must be good for a second call until then, and read no value
  // that takes a gradient but `input`; ContractError if it does. A segment within a segment is one of the second run.
  Var recompute(Var input, Segment segment);

  // --- for ops
  Backend& backend() const { return backend_; }
  Stream& stream() const { return stream_; }
  Tensor allocate(DType dtype, Shape shape, const char* what = "activation") {
    return arena_.allocate(dtype, shape, what);
  }
  DType compute_dtype(Op op, DType first, DType widest_input) const;
  // What a linear layer here rounds the operands of its products to.
  LinearFormats linear_formats() const;
  // How a linear layer here makes products of fp32 matrices.
  Fp32Products fp32_products() const { return precision_->fp32_products; }
  // `tensor` in `dtype`: itself, or a cast copy.
  Tensor cast(const Tensor& tensor, DType dtype);
  Tensor weight(const Parameter& parameter, DType dtype) { return casts_.get(parameter, dtype, stream_); }
  // For products by weight(parameter, dtype).
  OperandCache* operand_cache(const Parameter& parameter, DType dtype) const {
    return options_.operand_caches ? options_.operand_caches->get(parameter, dtype) : nullptr;
  }
  // Whether products are to be shown to an observer. What they read must then be at hand unrounded.
  bool is_observed() const { return options_.observer != nullptr; }
  // Shows a product, once it has been queued, if there is an observer. Those of a forward pass that is made again have
  // been shown.
  void show_product(const ObservedProduct& shown) const {
    if (!is_observed() || (shown.product == Product::kForward && is_second_run_)) return;
    options_.observer->on_product(shown);
  }
  // A number for this op's random choices, the same in every run of the same model.
  uint32_t next_random_site() { return random_sites_++; }

  // Records that `op` made `output`. inputs without a slot and parameters of a backward-less tape are ignored.
  // `backward` runs at most once; it must hand a gradient to every input that has a slot and to each of `parameters`.
  Var record(Op op, Tensor output, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters,
             Backward backward);
  // y, which was recorded last, with the way to make its value again where options().recompute is kSelective. `remake`
  // must hold no memory that the op's own node does not: by then it would be no gain.
  Var remakeable(Var y, Remake remake) const;
  // False in the first run of a segment that is dropped.
  bool is_recording() const { return training() && dropped_parameters_ == nullptr; }

  // --- for backward functions
  // A buffer for the gradient of `input`, in its dtype: fresh (kWrite) or holding earlier contributions (kAccumulate).
  GradientTarget gradient_target(const Var& input);
  // Hands over a finished gradient: becomes the input's gradient, or is added to it. Other float dtypes are cast.
  void give_gradient(const Var& input, Tensor gradient);
  // The parameter's fp32 gradient and how to write it this time.
  GradientTarget gradient_target(Parameter& parameter);

  // Runs the backward pass from a loss, whose op scales its gradient by options().loss_gradient. The tape is empty
  // afterwards; with check_gradients the pass ends behind the first op that made a NaN or Inf. ContractError on a
  // second call, or if the tape was made for evaluation or to examine outputs.
  void backward(const Var& loss);

  // What check_outputs or check_gradients found first, if anything.
  const std::optional<NonFiniteOp>& first_non_finite() const { return search_.found(); }
  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    int slot = -1;
    std::vector<Parameter*> parameters;
    Backward backward;
    std::optional<SearchedOp> source{};  // where shows_gradients(); not of a segment
  };
  // What ops read of the tape and the thread besides their inputs.
  struct Position {
    std::string layer;
    uint32_t random_sites = 0;
    AutocastState autocast;
  };
  class DroppedRun;
  class SecondRun;

  Var push_node(Tensor output, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters,
                Backward backward);
  // As push_node(), for a tape that examines: nothing is kept of the op but the output's place among the others.
  Var examine(Op op, Tensor output, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters);
  bool shows_gradients() const { return options_.check_gradients || options_.after_backward != nullptr; }
  SearchedOp searched(Op op, int slot, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters);
  // Before and after the backward function of `op`: for options().after_backward and options().check_gradients.
  void show_incoming(const SearchedOp& op, const Tensor& d_out);
  void plant_fault(const SearchedOp& op);
  void examine_gradients(const SearchedOp& op);
  Position position() const { return {layer_, random_sites_, autocast_state()}; }
  void go_to(const Position& position);

  Backend& backend_;
  Stream& stream_;
  Arena& arena_;
  const PrecisionPolicy& policy_;
  WeightCastCache& casts_;
  TapeOptions options_;
  std::string layer_;
  const Precision* precision_;
  std::vector<Node> nodes_;
  Node running_;  // whose backward runs; it may record nodes of its own
  struct Slot {
    DType dtype;
    Shape shape;
    Tensor gradient;  // undefined until the first contribution
  };
  std::vector<Slot> slots_;
  uint32_t random_sites_ = 0;
  std::vector<Parameter*>* dropped_parameters_ = nullptr;  // uses of a segment that is not recorded now, else nullptr
  SearchedOp last_dropped_;                                // of such a segment, where shows_gradients()
  bool is_second_run_ = false;                             // of a segment
  std::map<std::pair<std::string, Op>, int> searched_;     // ops by layer and kind, where they are told apart
  bool spent_ = false;
  FaultSearch search_;
};

}  // namespace mantissa
