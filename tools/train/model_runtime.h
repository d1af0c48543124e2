// The device that a rank computes on, and a model on it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "amp/autocast_policy.h"
#include "comm/gpu_claim.h"
#include "core/autograd/tape.h"
#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"
#include "models/model.h"
#include "tools/config/config.h"

namespace mantissa {

// The backend, and the node's device, that a rank computes on.
struct DeviceChoice {
  std::string backend;  // "cuda", "cpu"
  int index = 0;        // among the devices that this process sees
  std::string reason;   // why not a better one; empty where there is none
};

// `wanted` is the configuration's device: a backend, or "auto" for the best that this program and machine have. Ranks
// of a node take its devices in turns. ConfigError saying why if the backend that was asked for cannot be used.
DeviceChoice choose_device(const std::string& wanted, int local_rank);

// Whether the device that choose_device() takes computes in host memory. A device that is named need not be usable
// here.
bool computes_on_host(const std::string& wanted, int local_rank);

// ConfigError if `device` names a backend that is not in this program, with those that are.
void require_known_device(const std::string& device);

// The claim of a rank on its device, to find ranks that share one.
GpuClaim claim_of(const DeviceChoice& choice);

// ConfigError if the device does not compute in the configuration's precision.
void require_precision(const Config& config, const DeviceChoice& device);
// The chosen device, with the settings of the section `cuda`. ConfigError as above.
std::unique_ptr<Backend> open_device(const Config& config, const DeviceChoice& device);

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
