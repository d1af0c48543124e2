// GradientReducer: sums the ranks' gradients, bucket by bucket, while the backward pass is still running.
//
//   reducer.begin();                                    // before the backward pass of the last micro-batch
//   ... reducer.ready(parameter); reducer.progress();   // from the tape's hooks
//   reducer.finish();                                   // then result(bucket)
//
// Per bucket: cast to the wire dtype with a power-of-two scale (see wire_plan.h; fp32 goes out as it is, without a
// copy), all-to-all of the shards, then each rank adds the contributions to its shard in rank order, in fp32 unless the
// configuration asks for the wire dtype. One rounding per contribution, whatever the number of ranks, and the same sum
// in every run. Where the gradients lie in memory that all ranks of the job share, nothing is sent: when all have
// reached a bucket, each rank adds up its shard of it from their gradients, rounding them on the way to the same bits.
// Replicated: the sums are then all-gathered in the wire dtype, so that every rank holds the same bits.
// With one rank there is no wire: nothing is copied, nothing is rounded, the result is the gradient itself.
//
// What a step has to know of its gradients, whether they are finite and what their norm is, is found out bucket by
// bucket when the sum is made, so that no later pass has to fetch them from memory again. Sums are made in an order
// that depends on timing: each bucket has a record of its own, and whoever adds the records does so in bucket order.
//
// Gradients arrive weighted by 1 / (tokens of the global batch): the plain sum over ranks is the gradient of the mean
// loss. The local gradients stay as they are, so that the origin of a NaN can be searched afterwards
// (verdict_reduction.h).
//
// Buckets start strictly in layout order, because all ranks must start the same collectives in the same order, while
// the order in which gradients land may differ between ranks.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_buckets.h"
#include "comm/reduction_buffers.h"

namespace mantissa {

class GradientReducer {
 public:
  // Everything passed by reference must outlive the reducer. `compute` is the stream that writes the gradients.
  GradientReducer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute,
                  const ReducerConfig& config);

  // Opens a reduction. ContractError if one is open already.
  void begin();
  // The parameter's gradient is complete on this rank. A bucket whose last parameter lands starts at once, provided
  // that the buckets before it have started. ContractError when told twice, or outside of begin() ... finish().
  void ready(const Parameter& parameter);
  // Advances what is under way, without blocking; call it between the nodes of the backward pass.
  void progress();
  // Zero-fills the gradients that nothing has written in this step, starts what has not started and completes all.
  void finish();

  // After finish(), fp32: this rank's shard of the summed bucket, or the whole of it when replicated.
  const Tensor& result(int bucket) const;
  // This rank's shard of the summed bucket in both modes.
  Tensor result_shard(int bucket) const;
  // After finish(), u8 of a TensorStats for each bucket, in layout order: of its result_shard() when that was made, by
  // flat index.
  const Tensor& stats() const;

  const ReducerConfig& config() const { return config_; }
  const WirePlan& plan() const { return buffers_.plan(); }
  ContributionPath path() const { return buffers_.path(); }
  // How many buckets of the reduction under way, or of the last one, have started, and how many of them are complete.
  int started() const { return started_; }
  int completed() const { return completed_; }
  // What this rank's gradient elements look like on the wire: perhaps a view into a buffer that the next call or
  // begin() overwrites. Between finish() and begin() only.
  Tensor as_sent(const Tensor& gradient);
  // Bytes of its wire buffers and summed gradients.
  size_t buffer_bytes() const { return buffers_.bytes(); }

 private:
  enum class Phase : uint8_t { kWaiting, kScattering, kSummed, kGathering, kComplete };
  struct State {
    Phase phase = Phase::kWaiting;
    int pending = 0;  // parameters whose gradients have not landed
    std::unique_ptr<Work> work;
  };

  void check_finished(const char* caller) const;
  bool alone() const { return communicator_.size() == 1; }
  bool in_place() const { return path() == ContributionPath::kInPlace; }
  void start_next();
  // Lets the others have what they need of this rank's bucket. Done when this rank has what it needs of theirs.
  std::unique_ptr<Work> offer(int bucket);
  void sum(int bucket);
  // Records what this rank's shard of the bucket's result holds, now that it is final.
  void examine(int bucket, Stream& stream);
  // Replicated, what all ranks will hold: the sum in the wire dtype. The send buffer has served and takes it.
  const Tensor& gathered(int bucket) const;
  Tensor shard_of(const Tensor& whole) const;
  Tensor shard_of_result(int bucket) const;
  int64_t shard_begin(int bucket) const;  // flat index
  Tensor record_of(int bucket) const;
  void start_gather(int bucket);
  void complete(int bucket);

  FlatBuckets& buckets_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& compute_;
  std::unique_ptr<Stream> stream_;  // of communication
  ReducerConfig config_;
  ReductionBuffers buffers_;
  Tensor no_stats_, stats_;  // a TensorStats for each bucket: empty ones; those of this reduction
  std::vector<State> states_;
  std::vector<bool> landed_;  // by parameter
  bool open_ = false;
  int started_ = 0, completed_ = 0;
};

}  // namespace mantissa
