// What the configuration decides about gradients on their way between ranks. Plain data.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"

namespace mantissa {

// Who keeps optimizer state: each rank its shard of every bucket, or every rank everything (for comparison).
enum class Sharding : uint8_t { kSharded, kReplicated };

// How contributions of the ranks are added: in fp32, or rounded to the wire dtype after every addition, which is what a
// native 16-bit reduction does.
enum class Accumulation : uint8_t { kFp32, kWire };

struct ReducerConfig {
  DType wire = DType::kBF16;
  Accumulation accumulation = Accumulation::kFp32;
  Sharding sharding = Sharding::kSharded;
  // Contributions arrive 2^boost_log2 times larger than their share of the mean over the global batch. A trainer that
  // runs the backward pass with the mean over one micro-batch of one rank sets log2(ranks * micro-batches), rounded
  // down.
  int boost_log2 = 0;
};

}  // namespace mantissa
