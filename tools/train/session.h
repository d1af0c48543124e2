// Session: everything that a training run is made of on one rank, put together from the configuration.
#pragma once

#include <memory>

#include "amp/grad_scaler.h"
#include "comm/communicator.h"
#include "comm/flat_buckets.h"
#include "comm/gradient_reducer.h"
#include "comm/sharded_optimizer.h"
#include "comm/verdict_reduction.h"
#include "core/optim/clip.h"
#include "tools/train/batch_source.h"
#include "tools/train/fault_injection.h"
#include "tools/train/model_runtime.h"

namespace mantissa {

struct Session {
  // Checks that all ranks have the same configuration and data (CommError naming the ranks otherwise), then allocates
  // and initialises. Collective. `config` and `communicator` must outlive the session.
  Session(const Config& config, Communicator& communicator);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int ranks() const { return communicator.size(); }
  // Whether steps are captured in a CUDA graph (cuda.graph): not while they are profiled, since a repeated capture
  // passes no kernel calls.
  bool captures_steps() const;
  int64_t micro_batches() const { return config.train.global_batch / (config.train.micro_batch * ranks()); }

  const Config& config;
  const DeviceChoice device;
  const std::unique_ptr<StepProfiler> profiler;  // where profile: true
  ModelRuntime runtime;
  std::unique_ptr<Communicator> staged;    // where the given transport works on host memory and the device has its own
  std::unique_ptr<Communicator> profiled;  // tells the profiler of what it hands on
  Communicator& communicator;              // the one to use
  BatchSource data;
  FaultInjection injection;
  FlatBuckets buckets;
  GradientReducer reducer;
  AmaxExchange amaxes;
  ShardedOptimizer optimizer;
  VerdictReduction verdicts;
  GradScaler scaler;
  GradientClipper clipper;

  int64_t next_step = 0;  // steps done, skipped ones included: the data cursor
};

// CommError naming a rank that was started with another configuration than rank 0. Collective.
void require_same_configuration(const Config& config, Communicator& communicator);

// log2 of the gradient boost. Backward passes run with the gradient of the mean over one micro-batch of one rank, so
// that the gradients of 16-bit activations keep their magnitude whatever the number of ranks and micro-batches: this
// power of two, at most ranks * micro-batches, above the gradient of the global mean. Unscaling takes it out again,
// exactly.
int gradient_boost_log2(int64_t ranks, int64_t micro_batches);

// How these ranks will come to each other's gradients, unless the system refuses them the memory for it.
ContributionPath expected_path(const Config& config, const Communicator& communicator);

// The buckets of the configuration's parameters for this many ranks.
BucketLayout lay_out(const Config& config, const ParameterSet& parameters, int ranks);

// The configuration's reduction for this many ranks.
ReducerConfig resolve_reducer(const Config& config, int ranks);

}  // namespace mantissa
