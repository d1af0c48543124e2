#include "tools/train/step_memory.h"

#include <algorithm>

#include "amp/working_dtype.h"
#include "core/backend/dry_run_backend.h"
#include "core/base/meaningless_settings.h"
#include "models/model.h"

namespace mantissa {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 46;  // address space that nobody touches

// Rounding that could have no effect is an error, as every setting without one.
void require_something_to_round(const Config& config, const ParameterSet& parameters) {
  const AdamWOptions& options = config.optimizer.adamw;
  if (!config.lifts.empty()) return;  // what is left to round may go back to what it was
  if (options.weight_rounding == WeightRounding::kNearest && options.master == MasterWeights::kF32) return;
  for (int index = 0; index < parameters.size(); ++index) {
    if (parameters[index].working_dtype != DType::kF32) return;
  }
  if (options.master != MasterWeights::kF32) {
    throw MeaninglessSettings(
        {"optimizer.master"},
        "optimizer.master: none_stochastic and kahan are about working weights in bf16, and precision: settings make "
        "all of them fp32; give optimizer.master=fp32, or let a linear layer compute in bf16");
  }
  throw MeaninglessSettings(
      {"optimizer.weight_rounding"},
      "optimizer.weight_rounding: stochastic has no meaning where precision: settings make every working weight fp32, "
      "as the masters are: nothing is rounded; give optimizer.weight_rounding=nearest, or let a linear layer compute "
      "in bf16 or fp16");
}

// For whom products keep at hand what they read.
class Bystander final : public ProductObserver {
 public:
  void on_product(const ObservedProduct&) override {}
};

// After a pass.
void require_matches(const AutocastPolicy& policy) {
  const auto unmatched = policy.unmatched_patterns();
  if (unmatched.empty()) return;
  throw ConfigError(
      fmt::format("precision.layers: '{}' matches no layer of this model; layers are named like 'blocks.0.mlp.up', "
                  "'blocks.*.attention' or 'head'",
                  unmatched.front()));
}

// A model on a device that does nothing.
class Walk {
 public:
  explicit Walk(const Config& config, Backend* packing = nullptr, Fp8GemmSupport support = Fp8GemmSupport::kNone)
      : config_(config),
        backend_(packing, support),
        policy_(config.autocast()),
        model_(make_model(config, policy_, parameters_)) {
    for (int index = 0; index < parameters_.size(); ++index) {
      Parameter& parameter = parameters_[index];
      parameter.weight = backend_.make_tensor(parameter.working_dtype, parameter.shape, "weight");
      parameter.gradient = backend_.make_tensor(DType::kF32, parameter.shape, "gradient");
    }
    tokens_ = backend_.make_tensor(DType::kI32, {config.train.micro_batch * config.model.context}, "tokens");
  }

  const AutocastPolicy& policy() const { return policy_; }
  // Of a linear layer whose result is `output`.
  LayerExtents extents_of(std::string_view layer, const Tensor& output) const {
    LayerExtents extents{.rows = output.dim(0), .outputs = output.dim(1), .dtype = output.dtype()};
    for (int index = 0; index < parameters_.size(); ++index) {
      const Parameter& parameter = parameters_[index];
      if (parameter.precision_layer() != layer) continue;
      if (parameter.shape.rank() == 2) extents.inputs = parameter.shape[1];
      if (parameter.shape.rank() == 1) extents.has_bias = true;
    }
    return extents;
  }
  const Model& model() const { return *model_; }
  size_t arena_bytes() const { return arena_.peak_bytes(); }
  size_t cast_bytes() const {
    return weights_.size_bytes(DerivedKind::kCast) + weights_.size_bytes(DerivedKind::kRounded) +
           (scales_ ? scales_->size_bytes() : 0);
  }
  size_t amax_bytes() const { return scales_ && !scales_->empty() ? scales_->records().size_bytes() : 0; }
  size_t packed_bytes() const { return weights_.size_bytes(DerivedKind::kPacked); }

  // What follows belongs to a training, which keeps the state of delayed scaling.
  void keep_delayed_scales() { scales_.emplace(parameters_, policy_, config_.precision.delayed, backend_, *stream_); }

  void step(TapeOptions options = {}) {
    Tape tape = make_tape(std::move(options));
    tape.backward(loss(tape).sum);
  }

  // Every kind of step that a training of this configuration has. Delayed scaling has the first batch to itself.
  void all_steps() {
    if (!scales_->empty()) {
      scales_->begin_calibration();
      step();
      scales_->end_calibration();
    }
    step();
    if (!config_.probe.enabled) return;
    Bystander bystander;
    step({.observer = &bystander});
  }

  void search_for_culprit() {
    TapeOptions options;
    options.check_outputs = true;
    Tape tape = make_tape(std::move(options));
    loss(tape);
  }

  void evaluation() {
    Tape tape = make_tape({.mode = TapeMode::kEvaluation});
    loss(tape);
  }

  void generation() {
    require_causal(*model_, config_.model);
    for (int64_t length = 1; length <= config_.model.context;
         length = padded_length(length, config_.model.context) + 1) {
      Tape tape = make_tape({.mode = TapeMode::kEvaluation});
      next_logits(tape, *model_, tokens_, length, config_.model);
    }
  }

 private:
  Tape make_tape(TapeOptions options) {
    options.recompute = config_.train.recompute;
    options.keeps_packed = options.keeps_rounded = true;
    options.delayed_scales = scales_ ? &*scales_ : nullptr;
    options.random.step = backend_.make_tensor(DType::kI32, {1}, "step number");
    options.random.samples = config_.train.micro_batch;
    options.loss_gradient = backend_.make_tensor(DType::kF32, {1}, "loss gradient");
    return Tape(backend_, *stream_, arena_, policy_, weights_, std::move(options));
  }

  LossOutput loss(Tape& tape) { return model_->loss(tape, tokens_, tokens_, config_.model.context); }

  const Config& config_;
  DryRunBackend backend_;
  const std::unique_ptr<Stream> stream_ = backend_.create_stream();
  const AutocastPolicy policy_;
  ParameterSet parameters_;
  const std::unique_ptr<Model> model_;
  DerivedWeights weights_{backend_};
  std::optional<DelayedScales> scales_;
  Arena arena_{backend_.reserve(kArenaBytes)};
  Tensor tokens_;
};

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters) {
  auto model = create_model(config.model, parameters);
  assign_working_dtypes(parameters, policy, config.precision.weights);
  require_something_to_round(config, parameters);
  return model;
}

bool draws_samples(const Config& config, const Model& model) {
  return config.train.sample_tokens > 0 && model.objective() == Objective::kNextToken &&
         config.data.format == DataFormat::kBytes;
}

StepMemory walk_step(const Config& config, Backend* packing, Fp8GemmSupport support) {
  Walk walk(config, packing, support);
  walk.keep_delayed_scales();
  walk.all_steps();
  require_matches(walk.policy());
  return {.activations = walk.arena_bytes(),
          .casts = walk.cast_bytes(),
          .amaxes = walk.amax_bytes(),
          .packed = walk.packed_bytes()};
}

std::vector<PlacedOp> ops_of(const Config& config) {
  std::vector<PlacedOp> ops;
  Walk walk(config);
  walk.step({.after_op = [&](std::string_view layer, std::string_view op_name, Tensor& output) {
    const Op op = require_op(op_name);
    const Precision& precision = walk.policy().at(layer);
    ops.push_back({.layer = std::string(layer),
                   .op = op,
                   .compute = compute_dtype(precision, {}, op, output.dtype(), output.dtype()),
                   .formats = op == Op::kLinear ? linear_formats(precision, {}) : LinearFormats(),
                   .extents = op == Op::kLinear ? walk.extents_of(layer, output) : LayerExtents(),
                   .fp32_products = precision.fp32_products});
  }});
  require_matches(walk.policy());
  return ops;
}

size_t training_arena_bytes(const Config& config, Fp8GemmSupport support) {
  Walk walk(config, nullptr, support);
  walk.keep_delayed_scales();
  walk.all_steps();
  if (!config.test.activations.empty()) {
    walk.step({.after_op = [](std::string_view, std::string_view, Tensor&) {}});  // no op is part of another
  }
  walk.search_for_culprit();
  if (config.train.eval_interval > 0) walk.evaluation();
  if (draws_samples(config, walk.model())) walk.generation();
  return walk.arena_bytes();
}

size_t generation_arena_bytes(const Config& config, Fp8GemmSupport support) {
  Walk walk(config, nullptr, support);
  walk.generation();
  return walk.arena_bytes();
}

}  // namespace mantissa
