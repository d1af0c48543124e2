// Session: the parts of a training on one rank, assembled from the configuration or given.
#pragma once

#include <functional>
#include <memory>

#include "amp/grad_scaler.h"
#include "comm/communicator.h"
#include "comm/sharded_state.h"
#include "comm/verdict_reduction.h"
#include "core/kernels/fp8_gemm_support.h"
#include "core/optim/clip.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/run/guard/fault_injection.h"
#include "tools/run/guard/outliers.h"
#include "tools/train/step/batches.h"

namespace mantissa {

// The size of the step arena of a training: of its steps, of evaluation and samples where the configuration has them,
// and of the search for the op that made a loss non-finite. DryRun finds it (dry_run.cc).
size_t training_arena_bytes(const Config& config, Fp8GemmSupport support);

// Parts given by the caller; the configuration decides the others.
struct SessionParts {
  std::unique_ptr<Backend> backend{};        // null: the device that config.device names
  std::unique_ptr<StepProfiler> profiler{};  // null: none, unless config.profile
  std::function<std::shared_ptr<const Batches>(const Config&, Objective)> batches = open_batches;
  std::shared_ptr<StruckFaults> struck{};  // null: no fault has struck before
};

// A training in one precision on each rank. Code that runs, saves or restores a training takes a Session. Code with
// need of a single part takes the part: most often `runtime`, or `sharded`.
struct Session {
  // Checks that all ranks have the same configuration and data (CommError naming the ranks otherwise), then allocates
  // and initialises. On a backend that computes nothing the step arena is unlimited and weights are left as they are.
  // Collective. `config` and `communicator` must outlive the session.
  Session(const Config& config, Communicator& communicator, SessionParts parts = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int ranks() const { return communicator.size(); }
  // Whether steps are captured in a CUDA graph (cuda.graph). A profiled step is not: a replay passes no kernel calls.
  bool captures_steps() const {
    return config.cuda.graph && !config.profile && runtime.backend->device().kind == Device::Kind::kCuda;
  }
  int lanes() const { return config.train.lanes_of(ranks()); }
  // In a step, of each lane.
  int64_t micro_batches() const { return config.train.global_batch / (config.train.micro_batch * lanes()); }

  const Config& config;
  const DeviceChoice device;                     // empty where the backend was given
  const std::unique_ptr<StepProfiler> profiler;  // null without profile: true
  ModelRuntime runtime;
  FaultInjection faults;

 private:                                   // here because members are destroyed in reverse order
  std::unique_ptr<Communicator> staged_;    // where the given transport works on host memory and the device has its own
  std::unique_ptr<Communicator> profiled_;  // reports to the profiler

 public:
  Communicator& communicator;  // the given communicator or its wrapper
  const ExchangeGroups groups;
  const std::shared_ptr<const Batches> batches;
  AmaxExchange amaxes;
  ShardedState sharded;
  GradScaler scaler;
  GradientClipper clipper;
  SpikeDetector spikes;

  int64_t next_step = 0;        // steps done, skipped ones included
  int64_t skipped_batches = 0;  // by rollbacks: step n reads global batch n + skipped_batches
};

// CommError naming a rank that was started with another configuration than rank 0. Collective.
void require_same_configuration(const Config& config, Communicator& communicator);

// The data of a training, for all of its sessions. DataError; CommError naming a rank that reads other data than rank
// 0. Collective.
std::shared_ptr<const Batches> open_common_batches(const Config& config, Communicator& communicator);

// In place if ranks of the first stage share memory, unless the system refuses it. Gradients that their sender must
// round are exchanged even then.
ContributionPath expected_path(const Config& config, Communicator& communicator);

// The weights that travel as codes (comm.gather); empty with `working`. Working dtypes are assigned.
CodedWeights gathered_codes(const Config& config, const ParameterSet& parameters, const PrecisionPolicy& policy);

// The buckets of the configuration's parameters for this many ranks, or these stages of an exchange.
BucketLayout lay_out(const Config& config, const ParameterSet& parameters, int ranks,
                     const std::vector<int>& stages = {});

}  // namespace mantissa
