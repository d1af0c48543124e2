// The bytes of the training state by formula, from the layout and the settings alone.
#pragma once

#include "comm/sharded_state.h"

namespace mantissa::testing {

// `coded`: the weights that are gathered as codes, if ranks gather weights at all.
inline StateMemory predicted_memory(const BucketLayout& layout, const ReducerConfig& config,
                                    const AdamWOptions& options, ContributionPath path = ContributionPath::kExchanged,
                                    const CodedWeights& coded = {}) {
  StateMemory memory;
  const bool one_copy = path == ContributionPath::kInPlace && config.sharding == Sharding::kSharded;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    const int64_t state = config.sharding == Sharding::kSharded ? bucket.shard_numel : bucket.numel;
    const auto weights = static_cast<size_t>(bucket.numel * size_bytes(bucket.dtype));
    memory.weights += one_copy ? weights / static_cast<size_t>(layout.ranks()) : weights;
    memory.gradients += static_cast<size_t>(bucket.numel * size_bytes(wide_of(bucket.dtype)));
    const StateFormat format = state_format(bucket, options);
    const int64_t master = format.has_master ? size_bytes(format.master) : format.has_compensation ? 2 : 0;
    memory.masters += static_cast<size_t>(state * master);
    for (const DType moment : {format.m, format.v}) {
      const int64_t scales = moment == DType::kU8 ? divide_up(state, kDynamicBlock) * 4 : 0;
      memory.moments += static_cast<size_t>(state * size_bytes(moment) + scales);
    }
  }
  memory.weights += layout.frozen_bytes();
  const WirePlan plan = plan_wire(layout, config, path);
  memory.buffers = plan.window_bytes + plan.result_bytes;
  if (one_copy || layout.ranks() == 1 || config.sharding != Sharding::kSharded) return memory;
  const GatherPlan gather = plan_gather(layout, coded);
  memory.weights += gather.shard_bytes;
  memory.buffers += GatherPlan::kSlots * gather.slot_bytes;
  return memory;
}

}  // namespace mantissa::testing
