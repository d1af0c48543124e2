// Memory of the training state by category: predicted from the layout before anything is allocated, and measured.
#pragma once

#include "comm/sharded_optimizer.h"

namespace mantissa {

// Bytes.
struct StateMemory {
  size_t weights = 0;    // working copies and unrounded shards; of weights in common, this rank's part
  size_t gradients = 0;  // fp32, local
  size_t masters = 0;    // or the compensations
  size_t moments = 0;
  size_t buffers = 0;  // wire buffers, summed gradients, and rows of gathered weights
  size_t total() const { return weights + gradients + masters + moments + buffers; }
  bool operator==(const StateMemory&) const = default;
};

// `coded`: the weights that are gathered as codes, if ranks gather weights at all.
StateMemory predict_memory(const BucketLayout& layout, const ReducerConfig& config, const AdamWOptions& options,
                           ContributionPath path = ContributionPath::kExchanged, const CodedWeights& coded = {});
StateMemory measure_memory(const FlatBuckets& buckets, const GradientReducer& reducer,
                           const ShardedOptimizer& optimizer);

}  // namespace mantissa
