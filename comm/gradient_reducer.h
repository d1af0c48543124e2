// GradientReducer: sums the ranks' gradients, bucket by bucket, while the backward pass is still running.
//
//   reducer.begin();                                    // before the backward pass of the last micro-batch
//   ... reducer.ready(parameter); reducer.progress();   // from the tape's hooks
//   reducer.finish();                                   // then result(bucket)
//
// Per bucket: cast to the wire dtype with a power-of-two scale (see below; fp32 is sent without a copy) and
// all-to-all of the shards. Each rank adds the contributions to its shard in rank order, in fp32 unless the
// configuration asks for the wire dtype. Each contribution is rounded once, whatever the number of ranks, and every run
// gives the same sum. Ranks that share the memory of their gradients send nothing: after a barrier, each rank adds up
// its shard from their gradients and rounds them on the way to the same bits. Replicated sums are all-gathered in fp32:
// in a 16-bit wire dtype they would be rounded a second time. One rank copies and rounds nothing.
//
// Statistics (finite flag and norm) are taken where a sum is made, so that no later pass reads it again. The order of
// sums depends on timing, so each bucket has its own record; readers add the records in bucket order.
//
// Gradients arrive weighted by 1 / (tokens of the global batch): their sum over ranks is the gradient of the mean loss.
// Local gradients stay unchanged, so that the origin of a NaN can be searched (verdict_reduction.h).
//
// Buckets start in layout order, alike on all ranks as collectives must, whatever the order in which gradients land.
#pragma once

#include "comm/comm_options.h"
#include "comm/corruption.h"

namespace mantissa {

// --- ReductionBuffers: the contributions to each bucket, the buffers in which they travel, and their sum. WirePlan:
// the scale of values on the wire and the places of wire buffers (pure arithmetic).
//
// Ranks that share the memory of their gradients read them in place. Others send them by all-to-all through a window.
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
// Window. It holds the largest bucket and at least a few of ordinary size. Buckets start in order, so places are known
// beforehand, as is the bucket whose end frees a place. In-place contributions and a single rank need none.

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

class GradientReducer {
 public:
  // Everything passed by reference must outlive the reducer. `compute` is the stream that writes the gradients.
  GradientReducer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute,
                  const ReducerConfig& config);

  void begin();  // Opens a reduction. ContractError if one is open already.
  // The parameter's gradient is complete on this rank. When the last one of a bucket lands and all earlier buckets have
  // started, the bucket starts at once. ContractError for a second call, or outside of begin() ... finish().
  void ready(const Parameter& parameter);
  void progress();  // advances the reduction without blocking; call it between the nodes of the backward pass
  // Zero-fills the gradients that nothing has written in this step, starts the remaining buckets and completes all.
  void finish();

  // After finish(), in the gradients' dtype: this rank's shard of the summed bucket; replicated: the whole bucket.
  const Tensor& result(int bucket) const { return finished("result").buffers_[bucket].result; }
  // this rank's shard of the summed bucket in both modes
  Tensor result_shard(int bucket) const { return finished("result_shard").shard_of_result(bucket); }
  // After finish(), u8: a TensorStats of result_shard() for each bucket, in layout order. Elements by flat index.
  const Tensor& stats() const { return finished("stats").stats_; }

  const ReducerConfig& config() const { return config_; }
  const WirePlan& plan() const { return buffers_.plan(); }
  ContributionPath path() const { return buffers_.path(); }
  // Started buckets, and complete buckets, of the current or last reduction.
  int started() const { return started_; }
  int completed() const { return completed_; }
  // This rank's gradient as it is sent, perhaps in a buffer of the next call. Between finish() and begin() only.
  Tensor as_sent(const Tensor& gradient);
  // With ReducerConfig::wire_digests, after finish(): data that changed between ranks, if several. Collective; blocks.
  std::vector<Corruption> compare_digests() {
    return finished("compare_digests").digests_ ? digests_->compare(compute_) : std::vector<Corruption>();
  }
  size_t buffer_bytes() const { return buffers_.bytes(); }  // wire buffers and summed gradients

 private:
  enum class Phase : uint8_t { kWaiting, kExchanging, kSummed, kGathering, kComplete };
  struct State {
    Phase phase = Phase::kWaiting;
    int pending = 0;  // parameters whose gradients have not landed
    std::unique_ptr<Work> work;
  };

  // Itself. ContractError before finish().
  const GradientReducer& finished(const char* caller) const {
    MANTISSA_CHECK(!open_ && completed_ == buckets_.size(), "[gradient_reducer.{}] asked before finish()", caller);
    return *this;
  }
  bool single_rank() const { return communicator_.size() == 1; }
  State& state(int bucket) { return states_[static_cast<size_t>(bucket)]; }
  void start_next();
  // Done when this rank can read all contributions to its shard.
  std::unique_ptr<Work> start_exchange(int bucket);
  void sum(int bucket);
  // Waits for the sum of a bucket and starts the gather that it needs, if any.
  void start_gather(int bucket);
  void complete(int bucket);
  // Takes the statistics of this rank's shard of the bucket's result.
  void record_stats(int bucket, Stream& stream);
  Tensor shard_of(const Tensor& whole) const {
    const int64_t shard = whole.numel() / communicator_.size();
    return whole.slice(communicator_.rank() * shard, shard);
  }
  Tensor shard_of_result(int bucket) const {
    const Tensor& result = buffers_[bucket].result;
    return config_.sharding == Sharding::kSharded ? result : shard_of(result);
  }
  // The flat index where this rank's shard begins.
  int64_t shard_begin(int bucket) const {
    const BucketLayout::Bucket& whole = buckets_.layout().bucket(bucket);
    return whole.flat_begin + communicator_.rank() * whole.shard_numel;
  }
  Tensor record_of(int bucket) const;

  FlatBuckets& buckets_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& compute_;
  std::unique_ptr<Stream> stream_;  // communication
  ReducerConfig config_;
  ReductionBuffers buffers_;
  std::unique_ptr<WireDigests> digests_;  // null without ReducerConfig::wire_digests, and for one rank
  Tensor no_stats_, stats_;               // a TensorStats for each bucket: empty; of this reduction
  std::vector<State> states_;
  std::vector<bool> landed_;  // by parameter
  bool open_ = false;
  int started_ = 0, completed_ = 0;
};

}  // namespace mantissa
