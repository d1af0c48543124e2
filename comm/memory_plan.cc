#include "comm/memory_plan.h"

namespace mantissa {

StateMemory predict_memory(const BucketLayout& layout, const ReducerConfig& config, const AdamWOptions& options,
                           ContributionPath path, const CodedWeights& coded) {
  StateMemory memory;
  const bool one_copy = path == ContributionPath::kInPlace && config.sharding == Sharding::kSharded;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    const auto whole = static_cast<size_t>(bucket.numel);
    const int64_t state = config.sharding == Sharding::kSharded ? bucket.shard_numel : bucket.numel;
    const size_t weights = whole * static_cast<size_t>(size_bytes(bucket.dtype));
    memory.weights += one_copy ? weights / static_cast<size_t>(layout.ranks()) : weights;
    memory.gradients += whole * sizeof(float);
    const StateFormat format = state_format(bucket, options);
    memory.masters += format.master_bytes(state);
    memory.moments += format.moment_bytes(state);
  }
  const WirePlan plan = plan_wire(layout, config, path);
  memory.buffers = plan.window_bytes + plan.result_bytes;
  if (one_copy || layout.ranks() == 1 || config.sharding != Sharding::kSharded) return memory;
  const GatherPlan gather = plan_gather(layout, coded);
  memory.weights += gather.shard_bytes;
  memory.buffers += GatherPlan::kSlots * gather.slot_bytes;
  return memory;
}

StateMemory measure_memory(const FlatBuckets& buckets, const GradientReducer& reducer,
                           const ShardedOptimizer& optimizer) {
  return {.weights = buckets.weight_bytes() + optimizer.unrounded_bytes(),
          .gradients = buckets.gradient_bytes(),
          .masters = optimizer.master_bytes(),
          .moments = optimizer.moment_bytes(),
          .buffers = reducer.buffer_bytes() + optimizer.gather_bytes()};
}

}  // namespace mantissa
