// A model on the device that a rank computes on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "amp/autocast_policy.h"
#include "core/autograd/tape.h"
#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"
#include "models/model.h"
#include "tools/config/config.h"
#include "tools/run/job/job.h"

namespace mantissa {

struct ModelRuntime {
  // `arena_bytes` gives the size of the step arena (dry_run.h); it may depend on the products of 8-bit operands that
  // the device multiplies itself. Not asked on a backend that computes nothing. A profiler, which must outlive the
  // object, sees every call of the backend.
  using ArenaBytes = std::function<size_t(Fp8GemmSupport support)>;
  ModelRuntime(const Config& config, std::unique_ptr<Backend> device, const ArenaBytes& arena_bytes,
               StepProfiler* profiler = nullptr);
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;

  // Keeps the state of delayed scaling from now on, as a training needs it. Without it passes scale by current amaxes.
  void keep_delayed_scales(const DelayedScalingOptions& options);

  // With another policy the same working weights run in another precision; delayed scaling is then current scaling.
  Tape make_tape(TapeOptions options, const PrecisionPolicy* other_policy = nullptr);

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  AutocastPolicy policy;
  ParameterSet parameters;
  std::unique_ptr<Model> model;
  DerivedWeights derived_weights;
  std::unique_ptr<DelayedScales> delayed_scales;  // of a training
  std::unique_ptr<Arena> arena;
};

// Registers the model's parameters and gives each its working dtype. Allocates nothing.
std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters);

}  // namespace mantissa
