// ModelRuntime: a model on its device, ready to run forward passes: what training and generation have in common.
#pragma once

#include <functional>
#include <memory>

#include "amp/autocast_policy.h"
#include "core/autograd/tape.h"
#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"
#include "models/model.h"
#include "tools/config/config.h"
#include "tools/train/device_choice.h"

namespace mantissa {

struct ModelRuntime {
  // The arena's size, which may depend on what the device multiplies itself, is that of the passes to come: see
  // step_memory.h. A profiler, which must outlive the object, is told of every call of the backend.
  using ArenaBytes = std::function<size_t(Fp8GemmSupport support)>;
  ModelRuntime(const Config& config, const DeviceChoice& device, const ArenaBytes& arena_bytes,
               StepProfiler* profiler = nullptr);
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;

  // Delayed scaling from now on, as a training needs it; current scaling in its place otherwise.
  void keep_delayed_scales(const DelayedScalingOptions& options);

  // With another policy than the runtime's own its layers are run in another precision, from the same working weights;
  // delayed scaling is done as current scaling then.
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

}  // namespace mantissa
