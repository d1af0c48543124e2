// ReductionBuffers: the contributions to each bucket, the buffers in which they travel, and their sum. WirePlan: the
// scale of values on the wire and the places of wire buffers (pure arithmetic).
//
// Ranks of a node that share the memory of their gradients read each other's gradients in place. Otherwise
// contributions travel by all-to-all through a window.
//
// Scale. A contribution is about 1/N of the global gradient, so a 16-bit format with a narrow range would lose small
// values to the factor N alone. All scales are powers of two, hence exact. Before the sum, a contribution is multiplied
// by
//   2^floor(log2 N)      for accumulation in fp32: the wire carries the magnitude of a local mean;
//   2^floor(log2 N) / p  for accumulation on the wire, p the smallest power of two >= sqrt(N), as FSDP2 divides:
//                        partial sums can then grow by sqrt(N) only;
//   1                    on a wire of fp32 or fp64,
// and the sum by the inverse. ReducerConfig::prescale_log2 is taken out of contributions as well.
//
// Window. It holds the largest bucket and at least a few of ordinary size. Buckets start in order, so their places are
// known beforehand, as is the last earlier bucket that must be complete before a place is free again. In-place
// contributions and a single rank need no buffers.
#pragma once

#include "comm/comm_options.h"
#include "comm/flat_buckets.h"

namespace mantissa {

// How a rank gets the others' contributions to its shards.
enum class ContributionPath : uint8_t {
  kExchanged,  // all-to-all in the wire dtype
  kInPlace,    // from their gradients in memory that the ranks share, rounded while they are read
};

struct WireScale {
  float before = 1.0f;  // factor of a contribution
  float after = 1.0f;   // factor of the sum of contributions: 1 / before
};

WireScale wire_scale(const ReducerConfig& config, int ranks);

struct WirePlan {
  static constexpr int kBucketsInFlight = 4;  // of ordinary size that fit in the window

  struct Slot {
    size_t send_bytes = 0;     // 0: the gradient itself is sent, or nothing is
    size_t receive_bytes = 0;  // 0: contributions are read in place
    size_t offset_bytes = 0;   // of the send buffer in the window; the receive buffer follows it
    int blocker = -1;          // last earlier bucket whose place overlaps; -1 for none
  };

  WireScale scale;
  size_t window_bytes = 0;
  size_t result_bytes = 0;  // sums that are stored apart from the local gradients
  std::vector<Slot> slots;  // by bucket
};

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config,
                   ContributionPath path = ContributionPath::kExchanged);

class ReductionBuffers {
 public:
  struct Bucket {
    Tensor send{};               // (numel) wire dtype: sent contributions; the gradient itself if nothing rounds it
    Tensor receive{};            // (numel) wire dtype; undefined if contributions are read in place
    SharedRows contributions{};  // (N, shard): all ranks' contributions to this rank's shard
    Tensor result{};  // sum: of the shard or, replicated, of the whole bucket; the gradient itself for one rank
  };

  // Collective.
  ReductionBuffers(const FlatBuckets& buckets, Communicator& communicator, Backend& backend,
                   const ReducerConfig& config);

  const Bucket& operator[](int bucket) const { return buckets_.at(static_cast<size_t>(bucket)); }
  const WirePlan& plan() const { return plan_; }
  bool in_place() const { return path_ == ContributionPath::kInPlace; }
  ContributionPath path() const { return path_; }
  // Temporary values in the wire dtype: in the window, if there is one.
  Tensor scratch(const Shape& shape) const {
    return window_ ? Tensor(window_, config_.wire, shape) : backend_.make_tensor(config_.wire, shape, "wire values");
  }
  size_t bytes() const;  // wire buffers and summed gradients

 private:
  Bucket make_bucket(const Tensor& gradient, const WirePlan::Slot& slot, const Communicator& communicator) const;

  Backend& backend_;
  ReducerConfig config_;
  ContributionPath path_;
  WirePlan plan_;
  std::shared_ptr<Storage> window_;  // null if nothing needs it
  std::vector<Bucket> buckets_;
  Registration registration_;  // the last member: goes before the buffers
};

}  // namespace mantissa
