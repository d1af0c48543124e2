// GradientReducer: sums the ranks' gradients, bucket by bucket, while the backward pass is still running.
//
//   reducer.begin();                                    // before the backward pass of a lane's last micro-batch
//   ... reducer.ready(parameter); reducer.progress();   // from the tape's hooks
//   reducer.next_lane();                                // if this rank has another lane: then ready() again
//   reducer.finish();                                   // then result(bucket)
//
// The sum is a binary tree over lanes (core/kernels/reduction/lane_tree.h), the same for any number of ranks, in fp32
// unless the configuration asks for the wire dtype. The gradient of a lane is rounded once to the wire dtype, with a
// power-of-two scale (see below). With a lane for each rank, a bucket is cast (fp32 is sent without a copy) and its
// shards go by all-to-all. A rank with several lanes sends the largest nodes that it can make of them (lane_sums.h).
// Each rank adds up the rest of the tree for its shard.
//
// Ranks with contributions in shared memory send nothing: after a barrier, each rank adds up its shard from there, and
// rounds gradients on the way to the same bits. Replicated sums are all-gathered in fp32: in a 16-bit wire
// dtype they would be rounded a second time. One lane copies and rounds nothing.
//
// Statistics (finite flag and norm) are taken where a sum is made, so that no later pass reads it again. Each unit of
// each bucket has its own record, so they depend neither on timing nor on the number of ranks.
//
// Gradients arrive weighted by 1 / (tokens of the global batch): their sum over lanes is the gradient of the mean loss.
// Contributions stay unchanged, so that the origin of a NaN can be searched (verdict_reduction.h).
//
// Buckets start in layout order, alike on all ranks as collectives must, whatever the order in which gradients land.
#pragma once

#include "comm/corruption.h"
#include "comm/reduction_buffers.h"

namespace mantissa {

class GradientReducer {
 public:
  // Everything passed by reference must outlive the reducer. `compute` is the stream that writes the gradients.
  GradientReducer(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& compute,
                  const ReducerConfig& config);

  // Opens a reduction, of this rank's first lane. On the device, unchanged until the next call: step (1) i32, for
  // stochastic rounding; unit (1) fp32, the factor that gradients carry, for error feedback. ContractError if one is
  // open already.
  void begin(const Tensor& step = {}, const Tensor& unit = {});
  // Completes a lane and begins the next of `lanes()`: the gradients are read, and the next ones replace them.
  void next_lane();
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
  // After finish(), u8: a TensorStats for each unit of result_shard() of each bucket. Elements by flat index.
  const Tensor& stats() const { return finished("stats").stats_; }

  OwnLanes lanes() const { return {communicator_.rank(), communicator_.size(), buckets_.layout().lanes()}; }
  const ReducerConfig& config() const { return config_; }
  const WirePlan& plan() const { return buffers_.plan(); }
  ContributionPath path() const { return buffers_.path(); }
  // Started buckets, and complete buckets, of the current or last reduction.
  int started() const { return started_; }
  int completed() const { return completed_; }
  // A parameter's gradient as this rank sends it: one tensor, or a tensor for each node of the tree; of codes, their
  // numbers. Perhaps in a buffer of the next call. Between finish() and begin() only; with error feedback not
  // after an update that was applied.
  std::vector<Tensor> as_sent(const Parameter& parameter);
  // With ReducerConfig::wire_digests, after finish(): data that changed between ranks, if several. Collective; blocks.
  std::vector<Corruption> compare_digests() {
    return finished("compare_digests").digests_ ? digests_->compare(compute_) : std::vector<Corruption>();
  }
  size_t buffer_bytes() const { return buffers_.bytes(); }  // wire buffers, summed gradients and residuals

  // ---- Error feedback (wire_rounding.h).
  const Tensor& applied() const { return buffers_.rounding().applied(); }
  std::vector<LaneResidual> residuals() const { return buffers_.rounding().residuals(compute_); }
  void clear_residuals() const { buffers_.rounding().clear_residuals(compute_); }

 private:
  enum class Phase : uint8_t { kWaiting, kExchanging, kSummed, kGathering, kComplete };
  struct State {
    Phase phase = Phase::kWaiting;
    int pending = 0;   // parameters whose gradients have not landed
    size_t stage = 0;  // of the exchange
    std::unique_ptr<Work> work;
  };

  // Itself. ContractError before finish().
  const GradientReducer& finished(const char* caller) const {
    MANTISSA_CHECK(!open_ && completed_ == buckets_.size(), "[gradient_reducer.{}] asked before finish()", caller);
    return *this;
  }
  bool single_rank() const { return communicator_.size() == 1; }
  bool single_lane() const { return buckets_.layout().lanes() == 1; }
  bool on_last_lane() const { return lane_ + 1 == last_lane_; }
  void await_gradients();     // of a lane
  void add_lane(int bucket);  // completes the bucket's gradient of the present lane
  State& state(int bucket) { return states_[static_cast<size_t>(bucket)]; }
  size_t stages() const { return groups_.stages().size(); }
  void start_next();
  void start_stage(int bucket);  // its work is done when this rank can read the members' contributions
  // Goes on with a bucket until it has started the stage. All ranks call this alike, whatever has arrived.
  void reach_stage(int bucket, size_t stage);
  void sum(int bucket);  // of the present stage
  // Waits for the sum of a bucket and starts the gather that it needs, if any.
  void start_gather(int bucket);
  void complete(int bucket);
  // Takes the statistics of this rank's shard of the bucket's result.
  void record_stats(int bucket, Stream& stream);
  Tensor shard_of_result(int bucket) const {
    const Tensor& result = buffers_[bucket].result;
    if (config_.sharding == Sharding::kSharded) return result;
    const BucketLayout& layout = buckets_.layout();
    return result.slice(layout.shard_begin(bucket, communicator_.rank()), layout.bucket(bucket).shard_numel);
  }
  // The flat index where this rank's shard begins.
  int64_t shard_begin(int bucket) const {
    const BucketLayout& layout = buckets_.layout();
    return layout.bucket(bucket).flat_begin + layout.shard_begin(bucket, communicator_.rank());
  }
  Tensor record_of(int bucket) const;

  static constexpr int kStageLag = 2;  // buckets that start between two stages of a bucket

  FlatBuckets& buckets_;
  const ExchangeGroups groups_;
  Communicator& communicator_;  // all ranks
  Backend& backend_;
  Stream& compute_;
  std::unique_ptr<Stream> stream_;  // communication
  ReducerConfig config_;
  ReductionBuffers buffers_;
  std::unique_ptr<WireDigests> digests_;  // null without ReducerConfig::wire_digests, and for one rank
  Tensor no_stats_, stats_;               // a TensorStats for each unit of this rank: empty; of this reduction
  std::vector<State> states_;
  std::vector<bool> landed_;  // by parameter
  int64_t lane_ = 0, last_lane_ = 1;
  bool open_ = false;
  int started_ = 0, completed_ = 0;
};

}  // namespace mantissa
