#include "tools/train/model_runtime.h"

#include "core/backend/profiling_backend.h"
#include "core/backend/registry.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

std::unique_ptr<Backend> make_backend(const Config& config, const DeviceChoice& device, StepProfiler* profiler) {
  auto backend = create_backend(device.backend, device.index);
  backend->set_gemm_options({.selection = config.cuda.gemm, .narrow_math = config.cuda.narrow_math});
  backend->set_attention_choice(config.cuda.attention);
  if (profiler != nullptr) return std::make_unique<ProfilingBackend>(std::move(backend), *profiler);
  return backend;
}

}  // namespace

ModelRuntime::ModelRuntime(const Config& config, const DeviceChoice& device, const ArenaBytes& arena_bytes,
                           StepProfiler* profiler)
    : backend(make_backend(config, device, profiler)),
      stream(backend->create_stream()),
      policy(config.autocast()),
      model(make_model(config, policy, parameters)),
      derived_weights(*backend),
      arena(std::make_unique<Arena>(backend->reserve(arena_bytes(backend->fp8_gemm_support())))) {}

void ModelRuntime::keep_delayed_scales(const DelayedScalingOptions& options) {
  delayed_scales = std::make_unique<DelayedScales>(parameters, policy, options, *backend, *stream);
}

Tape ModelRuntime::make_tape(TapeOptions options, const PrecisionPolicy* other_policy) {
  options.keeps_rounded = true;
  options.delayed_scales = other_policy == nullptr ? delayed_scales.get() : nullptr;
  return Tape(*backend, *stream, *arena, other_policy == nullptr ? policy : *other_policy, derived_weights,
              std::move(options));
}

}  // namespace mantissa
