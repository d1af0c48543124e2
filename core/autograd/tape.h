// Tape: nodes in execution order. The backward pass pops them in reverse and frees activations as it goes.
//
// Ops (core/ops) cast their inputs, run a kernel and record one node. A node's backward function receives the gradient
// of its output, in the output's dtype. It passes gradients on to its inputs and parameters.
#pragma once

#include "core/autograd/delayed_scales.h"
#include "core/autograd/fault_search.h"
#include "core/tensor/arena.h"

namespace mantissa {

class KeyValueCache;
class Tape;

// Recomputes a value in the backward pass, bit for bit, from tensors that are kept anyway.
using Remake = std::function<Tensor(Tape& tape)>;

// A value on a tape. Without a slot it takes no gradient (inputs, evaluation).
struct Var {
  Tensor value;
  int slot = -1;
  std::shared_ptr<const Remake> remake{};  // nullptr: later readers must keep the value
};

// A gradient buffer and whether to write it or to accumulate into it.
struct GradientTarget {
  Tensor tensor;
  GradientMode mode = GradientMode::kWrite;
};

// --- observers: they receive the matrix products of the linear layers in a pass, with their operands

// A matrix, rows first: x (R, K), W (N, K), dy (R, N). Valid, in stream order, until the call returns.
struct ObservedOperand {
  Tensor given{};       // before rounding, in the layer's compute dtype
  Tensor multiplied{};  // what the product reads: `given` if not rounded, undefined if it reads codes
  Tensor scale{};       // (1) fp32, the product is divided by it; undefined: 1
  // How it was rounded; std::nullopt: not at all.
  std::optional<TensorFormat> format{};
  BlockAxis axis = BlockAxis::kColumns;
  bool transformed = false;  // by the Hadamard transform along the rows, before rounding
};

// A matrix product of a linear layer, with its operands and its result.
struct ObservedProduct {
  const Parameter& weight;  // names the layer
  Product product = Product::kForward;
  ObservedOperand a{}, b{};  // x and W of fprop, dy and W of dgrad, dy and x of wgrad
  Tensor result{};           // y, dx or dW, including bias and earlier contributions; y before an activation function
  Fp32Products fp32_products = Fp32Products::kFp32;  // for fp32 a and b
  bool is_first = true;                              // of the pieces (row by row) in which a layer makes this product
  bool has_derivative = false;  // result is dx times the derivative of the activation function before the layer
};

// Receives the products of a pass: TapeOptions::observer.
class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // May queue work on the pass's stream. Must not allocate from its arena.
  virtual void on_product(const ObservedProduct& shown) = 0;
};

// --- the tape

// The activations that a training step keeps for its backward pass. The backward pass recomputes the others with the
// same kernels from the same numbers, so losses and gradients do not depend on the choice.
enum class Recompute : uint8_t {
  kNone,       // keeps all of them
  kSelective,  // all but outputs of norms and activation functions, which are recomputed from kept tensors
  kFull,       // only the inputs of segments (Tape::recompute): a model's blocks
};

enum class TapeMode : uint8_t { kTraining, kEvaluation };  // evaluation records nothing and applies no dropout

// Keys of the random choices of one micro-batch: see DropoutArgs.
struct RandomKey {
  uint64_t seed = 0;
  Tensor step{};              // (1) i32, on the device; required where random numbers are drawn
  uint32_t first_sample = 0;  // index of the micro-batch's first sample in the step's global batch
  int64_t samples = 0;        // in the micro-batch; required where gradients are rounded stochastically
};

// Options of a pass.
struct TapeOptions {
  TapeMode mode = TapeMode::kTraining;
  RandomKey random{};
  Tensor document_starts{};        // of the tokens: core/kernels/documents.h; undefined: each sequence is one document
  KeyValueCache* cache = nullptr;  // of the texts that an evaluation pass starts or continues; may be nullptr
  // (1) of the loss's dtype, on the device: the gradient of the loss, where the backward pass starts: loss scale /
  // non-ignored tokens of the global batch. Required in training.
  Tensor loss_gradient{};
  Recompute recompute = Recompute::kNone;
  bool keeps_packed = false;                // keep the device's packed form of weights that several passes read
  bool keeps_rounded = false;               // keep rounded weights; else every pass rounds them again
  DelayedScales* delayed_scales = nullptr;  // nullptr: delayed scaling becomes current scaling
  ProductObserver* observer = nullptr;      // sees the linear layers' products; nullptr: none
  bool check_outputs = false;               // examine every op's output; slow, excludes a backward pass
  bool check_gradients = false;             // examine the gradients that every op's backward function makes; slow
  std::function<void(Parameter&)> gradient_ready{};  // after the last use of a parameter in the backward pass
  std::function<void()> between_nodes{};             // lets communication progress during the backward pass
  std::function<void(std::string_view layer, std::string_view op, Tensor& output)>
      after_op{};  // test-only: fault injection
  // Test-only: called after the op's backward function, with the gradient of the first input with a gradient.
  std::function<void(std::string_view layer, std::string_view op, Tensor& gradient)> after_backward{};
};

class Tape {
 public:
  using Backward = std::function<void(Tape& tape, Tensor d_out)>;
  using Segment = std::function<Var(Tape& tape, Var input)>;

  // Everything passed by reference must outlive the tape. Activations come from the arena.
  Tape(Backend& backend, Stream& stream, Arena& arena, const PrecisionPolicy& policy, DerivedWeights& weights,
       TapeOptions options = {});
  // Releases the remains of a forward pass without a backward pass, including parameter use counts.
  ~Tape();
  Tape& operator=(Tape&&) = delete;

  // --- for models
  // Enters the layer `name` below the current one for the guard's lifetime.
  class LayerGuard {
   public:
    // The tape must outlive the guard.
    LayerGuard(Tape& tape, std::string_view name);
    ~LayerGuard();
    LayerGuard& operator=(LayerGuard&&) = delete;

   private:
    Tape& tape_;
    size_t parent_length_;
  };
  const TapeOptions& options() const { return options_; }
  const Tensor& document_starts() const { return options_.document_starts; }
  bool training() const { return options_.mode == TapeMode::kTraining; }
  const std::string& layer() const { return layer_; }
  // Whether every op's output is observed (check_outputs, after_op, after_backward). Fused ops then run as separate
  // ops. check_gradients keeps them fused: it must fit in the memory of a training step.
  bool shows_every_op() const {
    return options_.check_outputs || options_.after_op != nullptr || options_.after_backward != nullptr;
  }
  // Whether recompute() drops the activations of a segment.
  bool recomputes() const { return training() && !options_.check_outputs && options_.recompute == Recompute::kFull; }
  // segment(input). If recomputes(), only `input` is kept. The backward pass then runs the segment again with the same
  // layer path, autocast scope and random sites, and differentiates it. Hooks see only the first run's ops. `segment`
  // must stay callable until the backward pass and read no value that takes a gradient except `input`; ContractError if
  // it does. Nested segments are recomputed within the second run.
  Var recompute(Var input, Segment segment);

  // --- for ops
  Backend& backend() const { return backend_; }
  Stream& stream() const { return stream_; }
  Tensor allocate(DType dtype, Shape shape, const char* what = "activation") {
    return arena_.allocate(dtype, shape, what);
  }
  // Queues a kernel on the stream.
  template <typename Args>
  void run(const Args& args) {
    backend_.run(args, stream_);
  }
  // The dtype in which `op` computes in the current layer and scope.
  DType compute_dtype(Op op, DType first, DType widest_input) const {
    return mantissa::compute_dtype(*precision_, autocast_state(), op, first, widest_input);
  }
  // Formats to which a linear layer rounds the operands of its products here.
  LinearFormats linear_formats() const { return mantissa::linear_formats(*precision_, autocast_state()); }
  // How a linear layer makes products of fp32 matrices here.
  Fp32Products fp32_products() const { return precision_->fp32_products; }
  Tensor cast(const Tensor& tensor, DType dtype);  // `tensor` itself if it has this dtype, else a cast copy
  // The one way to read a parameter's weight. Backward functions keep the Parameter, not the tensor.
  Tensor weight(const Parameter& parameter, DType dtype) const { return weights_.cast(parameter, dtype, stream_); }
  Tensor weight(const Parameter& parameter) const { return weight(parameter, parameter.working_dtype); }
  // For products that read weight(parameter, dtype).
  OperandCache* packed_weight(const Parameter& parameter, DType dtype) const {
    return options_.keeps_packed ? weights_.packed(parameter, dtype) : nullptr;
  }
  // Keeps rounded weights; nullptr: none are kept.
  DerivedWeights* kept_rounded() const { return options_.keeps_rounded ? &weights_ : nullptr; }
  // Whether an observer sees the products. Their unrounded operands must then be available.
  bool is_observed() const { return options_.observer != nullptr; }
  // Passes a queued product to the observer, if any. Skips forward products of a recomputed segment, which it has seen.
  void show_product(const ObservedProduct& shown) const {
    if (!is_observed() || (shown.product == Product::kForward && is_second_run_)) return;
    options_.observer->on_product(shown);
  }
  // A number that identifies this op's random choices, the same in every run of the same model.
  uint32_t next_random_site() { return random_sites_++; }

  // Records that `op` made `output`. Ignores inputs without a slot and parameters that are nullptr; ignores all
  // parameters on an evaluation tape, and frozen ones. `backward` runs at most once and must give the others gradients.
  Var record(Op op, Tensor output, const std::vector<Var>& inputs, std::vector<Parameter*> parameters,
             Backward backward);
  // Returns y, recorded last, with `remake` attached if options().recompute is kSelective. `remake` must not keep
  // tensors alive beyond those the op's node already keeps; otherwise recomputing saves nothing.
  Var remakeable(Var y, Remake remake) const;
  // False in the first run of a segment whose activations are dropped.
  bool is_recording() const { return training() && dropped_parameters_ == nullptr; }

  // --- for backward functions
  // The gradient buffer of `input`, in its dtype: new (kWrite) or with earlier contributions (kAccumulate).
  GradientTarget gradient_target(const Var& input);
  // Hands over a finished gradient. It becomes the input's gradient or is added to it. Casts other float dtypes.
  void give_gradient(const Var& input, Tensor gradient);
  // The parameter's gradient, and whether to write it or to accumulate. A frozen parameter gets memory of this pass,
  // for kernels that make all gradients of an op at once.
  GradientTarget gradient_target(Parameter& parameter);

  // Runs the backward pass from a loss whose op scales its gradient by options().loss_gradient. Afterwards the tape is
  // empty. With check_gradients, the pass stops after the first op that made a NaN or Inf. ContractError on a second
  // call, or if the tape was made for evaluation or to examine outputs.
  void backward(const Var& loss);

  // The first non-finite result that check_outputs or check_gradients found, if any.
  const std::optional<NonFiniteOp>& first_non_finite() const { return search_.found(); }
  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    int slot = -1;
    std::vector<Parameter*> parameters;
    Backward backward;
    std::optional<SearchedOp> source{};  // if shows_gradients(); none for a segment
  };
  // State of the tape and the thread that ops read besides their inputs.
  struct Position {
    std::string layer;
    uint32_t random_sites = 0;
    AutocastState autocast;
  };

  Var push_node(Tensor output, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters,
                Backward backward);
  bool shows_gradients() const { return options_.check_gradients || options_.after_backward != nullptr; }
  SearchedOp searched(Op op, int slot, const std::vector<Var>& inputs, const std::vector<Parameter*>& parameters);
  // Runs after the backward function of `op`, for options().after_backward.
  void plant_fault(const SearchedOp& op);
  Position position() const { return {layer_, random_sites_, autocast_state()}; }
  void go_to(const Position& position) {
    layer_ = position.layer;
    precision_ = &policy_.at(layer_);
    random_sites_ = position.random_sites;
    autocast_state() = position.autocast;
  }

  Backend& backend_;
  Stream& stream_;
  Arena& arena_;
  const PrecisionPolicy& policy_;
  DerivedWeights& weights_;
  TapeOptions options_;
  std::string layer_;
  const Precision* precision_;
  std::vector<Node> nodes_;
  Node running_;  // the node whose backward function runs; it may record new nodes
  struct Slot {
    DType dtype;
    Shape shape;
    Tensor gradient;  // undefined until the first contribution
  };
  std::vector<Slot> slots_;
  uint32_t random_sites_ = 0;
  std::vector<Parameter*>* dropped_parameters_ = nullptr;  // uses in a segment that runs unrecorded, else nullptr
  SearchedOp last_dropped_;                                // last op of such a segment, if check_gradients
  bool is_second_run_ = false;                             // whether a segment runs for the second time
  std::map<std::pair<std::string, Op>, int> searched_;     // counts ops by layer and kind, to number them
  bool spent_ = false;
  FaultSearch search_;
};

// An input that an op's backward function reads, either kept or recomputed.
class SavedValue {
 public:
  // `tensor`: the value of x, or its cast to another dtype. Kept only if x has no `remake`.
  SavedValue(const Var& x, const Tensor& tensor)
      : kept_(x.remake ? Tensor() : tensor), remake_(x.remake), dtype_(tensor.dtype()) {}

  Tensor get(Tape& tape) const { return remake_ ? tape.cast((*remake_)(tape), dtype_) : kept_; }

 private:
  Tensor kept_;
  std::shared_ptr<const Remake> remake_;
  DType dtype_;
};

}  // namespace mantissa
