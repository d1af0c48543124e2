#include "comm/memory_plan.h"

namespace mantissa {

StateMemory predict_memory(const BucketLayout& layout, const ReducerConfig& config, const AdamWOptions& options,
                           ContributionPath path) {
  StateMemory memory;
  const bool one_copy = path == ContributionPath::kInPlace && config.sharding == Sharding::kSharded;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    const auto whole = static_cast<size_t>(bucket.numel);
    const auto state = config.sharding == Sharding::kSharded ? static_cast<size_t>(bucket.shard_numel) : whole;
    const size_t weights = whole * static_cast<size_t>(size_bytes(bucket.dtype));
    memory.weights += one_copy ? weights / static_cast<size_t>(layout.ranks()) : weights;
    memory.gradients += whole * sizeof(float);
    memory.masters += state * sizeof(float);
    memory.moments += state * (sizeof(float) + static_cast<size_t>(size_bytes(options.first_moment)));
  }
  const WirePlan plan = plan_wire(layout, config, path);
  memory.buffers = plan.window_bytes + plan.result_bytes;
  return memory;
}

StateMemory measure_memory(const FlatBuckets& buckets, const GradientReducer& reducer,
                           const ShardedOptimizer& optimizer) {
  return {.weights = buckets.weight_bytes(),
          .gradients = buckets.gradient_bytes(),
          .masters = optimizer.master_bytes(),
          .moments = optimizer.moment_bytes(),
          .buffers = reducer.buffer_bytes()};
}

}  // namespace mantissa
