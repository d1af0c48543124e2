#include "tools/model/runtime/model_runtime.h"

#include "core/backend/decorators.h"

namespace mantissa {
namespace {

constexpr size_t kDryArenaBytes = size_t{1} << 46;  // address space that nobody touches

std::unique_ptr<Backend> with_profiler(std::unique_ptr<Backend> device, StepProfiler* profiler) {
  if (profiler == nullptr) return device;
  return create_profiling_backend(std::move(device), *profiler);
}

}  // namespace

ModelRuntime::ModelRuntime(const Config& config, std::unique_ptr<Backend> device, const ArenaBytes& arena_bytes,
                           StepProfiler* profiler)
    : backend(with_profiler(std::move(device), profiler)),
      stream(backend->create_stream()),
      policy(config.precision_rules()),
      model(make_model(config, policy, parameters)),
      derived_weights(*backend),
      arena(std::make_unique<Arena>(
          backend->reserve(backend->computes() ? arena_bytes(backend->fp8_gemm_support()) : kDryArenaBytes))) {}

void ModelRuntime::keep_delayed_scales(const DelayedScalingOptions& options) {
  delayed_scales = std::make_unique<DelayedScales>(parameters, policy, options, *backend, *stream);
  // Amaxes of gradients that no frozen layer makes would never come.
  if (!delayed_scales->empty() && parameters.trainable_numel() < parameters.numel()) {
    throw ConfigError(
        "precision: delayed scaling and model.lora do not go together: frozen layers have no weight gradients whose "
        "scales could be kept; give another precision.recipe");
  }
}

Tape ModelRuntime::make_tape(TapeOptions options, const PrecisionPolicy* other_policy) {
  options.keeps_rounded = true;
  options.delayed_scales = other_policy == nullptr ? delayed_scales.get() : nullptr;
  return Tape(*backend, *stream, *arena, other_policy == nullptr ? policy : *other_policy, derived_weights,
              std::move(options));
}

std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters) {
  auto model = create_model(config.model, parameters);
  assign_working_dtypes(parameters, policy, config.precision.weights);
  return model;
}

}  // namespace mantissa
