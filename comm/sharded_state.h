// ShardedState: the data-parallel state of a rank.
#pragma once

#include "comm/sharded_optimizer.h"

namespace mantissa {

struct ShardedStateOptions {
  BucketLayout layout;
  SentBuckets sent{};
  ReducerConfig reduction{};
  AdamWOptions adamw{};
  CodedGatherOptions coded{};
  Digests digests = Digests::kOff;  // of the optimizer's state
};

// Gradients and weights in buckets, their reduction, and this rank's shard of masters and moments.
struct ShardedState {
  // Everything passed by reference must outlive the object, and so must options.coded.scales. Collective.
  ShardedState(ParameterSet& parameters, const ShardedStateOptions& options, const ExchangeGroups& groups,
               Backend& device, Stream& queue)
      : communicator(groups.all()),
        backend(device),
        stream(queue),
        buckets(parameters, options.layout, device, options.sent),
        reducer(buckets, groups, device, queue, options.reduction),
        optimizer(buckets, groups, device, queue, options.reduction.sharding, options.adamw, options.coded,
                  options.digests) {}

  const ParameterSet& parameters() const { return buckets.parameters(); }

  Communicator& communicator;
  Backend& backend;
  Stream& stream;
  FlatBuckets buckets;
  GradientReducer reducer;
  ShardedOptimizer optimizer;
};

// Bytes of the training state by category.
struct StateMemory {
  size_t weights = 0;    // working copies and unrounded shards; of weights in common, this rank's part
  size_t gradients = 0;  // local
  size_t masters = 0;    // or the compensations
  size_t moments = 0;
  size_t buffers = 0;  // wire buffers, summed gradients, residuals, and rows of gathered weights
  size_t total() const { return weights + gradients + masters + moments + buffers; }
  bool operator==(const StateMemory&) const = default;
};

StateMemory measure_memory(const FlatBuckets& buckets, const GradientReducer& reducer,
                           const ShardedOptimizer& optimizer);

// --- NaN and Inf in masters and moments, which no later step mends: AdamW's kernels note them (AdamWArgs::faults) and
// the verdict about the next step carries the note to all ranks. Before a state is saved or handed on, it is asked for.

// Whether the state of any rank is faulty. Waits for the queued updates; the same on all ranks. Collective.
bool has_state_faults(const ShardedState& state);

// Names the first fault in order of parameter, tensor and element over all ranks: "the second moment v of 'head.weight'
// is Inf at element 7, on rank 1". Empty if there is none. Slow; the same on all ranks. Collective.
std::string describe_state_faults(const ShardedState& state);

// --- A hash of the training state, by which runs on different ranks are compared.
//
// The sum modulo 2^64 over all elements of mixed(key + i g ^ b m): a mixer of 64 bits, of the element's bits b, its
// index i in the parameter, and a key of the parameter's name and the tensor (constants: sharded_state.cc). Sums do not
// depend on the order of elements, so shards add up to the same hash, whatever their number and layout. A change of one
// element always changes the hash; others, also exchanged elements or parameters, escape with a chance of about 2^-64.
// It is no protection against changes made on purpose.
struct StateHash {
  uint64_t weights = 0;  // masters, or weights that are their own state, of all trainable parameters
  uint64_t state = 0;    // these, compensations, moments and residuals
  bool operator==(const StateHash&) const = default;
};

// The hash of all ranks together: each element counts once. Reads the state once, on the host; waits for the queued
// updates. The same on all ranks. Collective.
StateHash hash_state(const ShardedState& state);

}  // namespace mantissa
