// WirePlan: the scale of values on the wire and the place of each bucket's wire buffers. Pure arithmetic.
//
// Scale. A rank's contribution is about 1/N of the global gradient, so that a 16-bit format with a narrow range would
// lose small values to the factor N alone. All scales are powers of two, hence exact. Before the sum a contribution is
// multiplied by
//   2^floor(log2 N)      with accumulation in fp32: the wire carries the magnitude of a local mean;
//   2^floor(log2 N) / p  with accumulation on the wire, p the smallest power of two >= sqrt(N), as FSDP2 divides: the
//                        partial sums can then grow by sqrt(N) only;
//   1                    on an fp32 wire,
// and the sum by the inverse. Contributions that arrive boosted (ReducerConfig::boost_log2) are scaled down by that
// power of two as well, and so is the sum where it is gathered in 16 bits (replicated).
//
// Buffers. Contributions that are read where they lie need none, but for what is gathered in 16 bits (replicated). Else
// all buckets share one window that holds the largest bucket and at least a few of ordinary size. Buckets
// start in order, so a bucket's place in the window is known beforehand, as is the last earlier bucket that must be
// complete before the place is free again. One rank needs no buffers.
#pragma once

#include <vector>

#include "comm/bucket_layout.h"
#include "comm/reducer_config.h"

namespace mantissa {

// How a rank comes to the others' contributions to its shards.
enum class ContributionPath : uint8_t {
  kExchanged,  // all-to-all in the wire dtype
  kInPlace,    // from their fp32 gradients, in memory that the ranks share, rounding on the way
};

struct WireScale {
  float before = 1.0f;  // of a contribution
  float after = 1.0f;   // of the sum of contributions: 1 / before
  float gather = 1.0f;  // of a sum that is gathered
};

WireScale wire_scale(const ReducerConfig& config, int ranks);

struct WirePlan {
  static constexpr int kBucketsInFlight = 4;  // of ordinary size that fit in the window

  struct Slot {
    size_t send_bytes = 0;     // 0 where the gradient itself is sent, or nothing is
    size_t receive_bytes = 0;  // 0 where contributions are read in place
    size_t offset_bytes = 0;   // of the send buffer in the window; the receive buffer follows it
    int blocker = -1;          // last earlier bucket whose place overlaps; -1 for none
  };

  WireScale scale;
  size_t window_bytes = 0;
  size_t result_bytes = 0;  // fp32 sums that are kept apart from the local gradients
  std::vector<Slot> slots;  // by bucket
};

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config,
                   ContributionPath path = ContributionPath::kExchanged);

}  // namespace mantissa
