#include "tools/train/step_memory.h"

#include "amp/working_dtype.h"
#include "core/backend/dry_run_backend.h"

namespace mantissa {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 46;  // address space that nobody touches

// Rounding that could have no effect is an error, as every setting without one.
void require_something_to_round(const Config& config, const ParameterSet& parameters) {
  if (config.optimizer.adamw.weight_rounding == WeightRounding::kNearest) return;
  for (int index = 0; index < parameters.size(); ++index) {
    if (parameters[index].working_dtype != DType::kF32) return;
  }
  throw ConfigError(
      "optimizer.weight_rounding: stochastic has no meaning where precision: settings make every working weight fp32, "
      "as the masters are: nothing is rounded; give optimizer.weight_rounding=nearest, or let a linear layer compute "
      "in bf16 or fp16");
}

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters) {
  auto model = create_model(config.model, parameters);
  assign_working_dtypes(parameters, policy, config.precision.weights);
  require_something_to_round(config, parameters);
  return model;
}

StepMemory walk_step(const Config& config) {
  DryRunBackend backend;
  const auto stream = backend.create_stream();
  const AutocastPolicy policy(config.precision.autocast());
  ParameterSet parameters;
  const auto model = make_model(config, policy, parameters);
  for (int index = 0; index < parameters.size(); ++index) {
    Parameter& parameter = parameters[index];
    parameter.weight = backend.make_tensor(parameter.working_dtype, parameter.shape, "weight");
    parameter.gradient = backend.make_tensor(DType::kF32, parameter.shape, "gradient");
  }
  WeightCastCache casts(backend);
  Arena arena(backend.reserve(kArenaBytes));
  const Tensor tokens = backend.make_tensor(DType::kI32, {config.train.micro_batch * config.model.context}, "tokens");
  {
    TapeOptions options;
    options.random.step = backend.make_tensor(DType::kI32, {1}, "step number");
    options.loss_gradient = backend.make_tensor(DType::kF32, {1}, "loss gradient");
    Tape tape(backend, *stream, arena, policy, casts, std::move(options));
    const LossOutput loss = model->loss(tape, tokens, tokens, config.model.context);
    tape.backward(loss.sum);
  }
  if (const auto unmatched = policy.unmatched_patterns(); !unmatched.empty()) {
    throw ConfigError(
        fmt::format("precision.layers: '{}' matches no layer of this model; layers are named like 'blocks.0.mlp.up', "
                    "'blocks.*.attention' or 'head'",
                    unmatched.front()));
  }
  return {.activations = arena.peak_bytes(), .casts = casts.size_bytes()};
}

}  // namespace mantissa
