// ReductionBuffers: the contributions to each bucket, the buffers in which they travel, and their sum. WirePlan: the
// scale of values on the wire and the places of wire buffers (pure arithmetic).
//
// In each stage of an exchange (exchange_groups.h) a rank has some nodes of the tree over lanes, or one lane's
// gradient, for a part of the bucket. It sends each member of its group their part, and adds up the received parts for
// the next stage; after the last stage they are the sum over all lanes of its shard. Ranks of a group with shared
// memory read the contributions of the first stage in place.
//
// Scale. The gradient of one of W lanes is about 1/W of the global gradient, so a 16-bit format with a narrow range
// would lose small values to the factor W alone. All scales are powers of two, hence exact. Before the sum, a lane's
// gradient is multiplied by
//   2^floor(log2 W)      for accumulation in fp32: the wire carries the magnitude of a local mean;
//   2^floor(log2 W) / p  for accumulation on the wire, p the smallest power of two >= sqrt(W), as FSDP2 divides:
//                        partial sums can then grow by sqrt(W) only;
//   1                    on a wire of fp32 or fp64, or of 8-bit codes, whose blocks have scales of their own,
// and the sum by the inverse. ReducerConfig::prescale_log2 is taken out of them as well.
//
// Window. It holds the largest bucket, with all its stages, and at least a few of ordinary size. Buckets start in
// order, so places are known beforehand, as is the bucket whose end frees a place. In-place contributions need none,
// and a single lane.
#pragma once

#include "comm/comm_options.h"
#include "comm/exchange_groups.h"
#include "comm/lane_sums.h"

namespace mantissa {

// How a rank gets the others' contributions, in the first stage.
enum class ContributionPath : uint8_t {
  kExchanged,  // all-to-all
  kInPlace,    // from memory that the ranks share; gradients are rounded while they are read, unless the sender must
};

struct WireScale {
  float before = 1.0f;  // factor of a lane's gradient
  float after = 1.0f;   // factor of the sum: 1 / before
};

WireScale wire_scale(const ReducerConfig& config, int lanes);

struct WirePlan {
  static constexpr int kBucketsInFlight = 4;  // of ordinary size that fit in the window

  struct Slot {
    size_t send_bytes = 0;     // 0: the gradient or nodes of the tree are sent, or nothing is
    size_t receive_bytes = 0;  // of all stages, and sums between them; 0: contributions are read in place
    size_t offset_bytes = 0;   // of the send buffer in the window; the others follow it
    int blocker = -1;          // last earlier bucket whose place overlaps; -1 for none
  };

  WireScale scale;
  size_t window_bytes = 0;
  size_t result_bytes = 0;  // sums that are stored apart from the local gradients
  size_t lane_bytes = 0;    // of LaneSums
  std::vector<Slot> slots;  // by bucket
};

// A stage on any rank: it starts with (slots, numel / divisor) of a bucket, of which each of `members` gets a part.
struct StageShape {
  int slots = 1;
  int members = 1;
  int64_t divisor = 1;
};

std::vector<StageShape> stage_shapes(const BucketLayout& layout);

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config,
                   ContributionPath path = ContributionPath::kExchanged);

class ReductionBuffers {
 public:
  struct Stage {
    // (slots, n), of the members' parts one after the other. In the first stage: the rounded gradient, or the gradient
    // itself if nothing rounds it; or LaneSums::nodes(). Codes are in a row for each part.
    Tensor send{};
    Tensor receive{};  // like `send`; undefined if contributions are read in place
    // (slots * N, n / N): the members' contributions to this rank's part, the first slot's first; n counts bytes of
    // rows of codes.
    SharedRows contributions{};
    int64_t slot_stride = 0;  // from a slot's row to the next slot's, in elements
    LaneGroup lanes{};        // of the members; empty if each is a lane, and there are no others
    Tensor out{};             // (nodes, n / N), or this rank's shard of the result
    Tensor next{};            // (slots of the next stage, n / N), of which `out` is a part; undefined in the last stage
  };
  struct Bucket {
    std::vector<Stage> stages{};  // none for a single lane
    Tensor result{};  // sum: of the shard or, replicated, of the whole bucket; the gradient itself for one lane
  };

  // Collective.
  ReductionBuffers(const FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend,
                   const ReducerConfig& config);

  LaneSums* lane_sums() { return lane_sums_.get(); }  // null unless some rank has several lanes
  // Whether contributions are rounded when they are sent or read; otherwise LaneSums has rounded gradients.
  bool rounds_contributions() const { return config_.rounds() && lane_sums_ == nullptr; }
  WireRounding& rounding() { return rounding_; }
  const WireRounding& rounding() const { return rounding_; }
  const Bucket& operator[](int bucket) const { return buckets_.at(static_cast<size_t>(bucket)); }
  const WirePlan& plan() const { return plan_; }
  bool in_place() const { return path_ == ContributionPath::kInPlace; }
  ContributionPath path() const { return path_; }
  // Temporary rounded values: in the window, if it is large enough.
  Tensor scratch(const Shape& shape) const {
    const DType dtype = config_.rounded();
    const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
    const bool fits = window_ != nullptr && window_->bytes() >= bytes;
    return fits ? Tensor(window_, dtype, shape) : backend_.make_tensor(dtype, shape, "wire values");
  }
  size_t bytes() const;  // wire buffers, summed gradients and residuals

 private:
  Bucket make_bucket(int bucket) const;
  Stage make_stage(size_t index, const Tensor& send, const Tensor& result, size_t& offset) const;

  const FlatBuckets& flat_;
  const ExchangeGroups groups_;
  Backend& backend_;
  ReducerConfig config_;
  WireRounding rounding_;
  std::unique_ptr<LaneSums> lane_sums_;
  ContributionPath path_;
  WirePlan plan_;
  std::shared_ptr<Storage> window_;  // null if nothing needs it
  std::vector<Bucket> buckets_;
  std::vector<Registration> registrations_;  // the last member: goes before the buffers
};

}  // namespace mantissa
