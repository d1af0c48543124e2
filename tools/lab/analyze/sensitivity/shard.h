// Shards: what this rank keeps of a model's gradients or weights, as tensors, and sums over all ranks' shards.
#pragma once

#include <vector>

#include "core/quant/probe_records.h"
#include "tools/train/session.h"

namespace mantissa {

// A stretch of a parameter, fp32.
struct ShardPart {
  int parameter = -1;
  int64_t begin = 0;  // element of the parameter
  Tensor values{};    // (count)
};
using Shard = std::vector<ShardPart>;

// Views: this rank's part of the summed gradients, after a pass; of the masters, or of weights that are their own.
Shard gradient_shard(Session& session);
Shard master_shard(Session& session);

// Other memory of the same form, and values from one into the other.
Shard allocate_like(const Shard& shard, Backend& backend);
void copy(const Shard& from, const Shard& to, Session& session);
void accumulate(const Shard& from, const Shard& to, Session& session);  // to += from, in fp32

// On the host, part by part.
std::vector<std::vector<float>> read(const Shard& shard, Session& session);

// Of each parameter how far x is from the reference, over the shards of all ranks, added in rank order. Collective.
std::vector<ErrorSums> compare(const Shard& x, const Shard& reference, Session& session);
// Of each parameter the sum over all ranks, in rank order: `mine` has one value for each. Collective.
std::vector<double> sum_over_ranks(const std::vector<double>& mine, Communicator& communicator);
// The smaller one, or NaN where one is: std::min() keeps NaN or drops it by its place.
double smaller_or_nan(double a, double b);
// Of each parameter the smallest, NaN where a rank has NaN. Collective.
std::vector<double> smallest_of_ranks(const std::vector<double>& mine, Communicator& communicator);
// All parameters together.
ErrorSums total(const std::vector<ErrorSums>& by_parameter);

}  // namespace mantissa
