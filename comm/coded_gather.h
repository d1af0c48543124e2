// CodedGather: the all-gather of updated weights as codes of eight bits, for the buckets that a GatherPlan has rows of.
//
// A weight that every product rounds by delayed scaling need not come to the other ranks in more bits than a product
// reads: the step's new scales are the same on every rank before the weights are updated. So this rank rounds what it
// has updated with the next scale, sends the codes, and every rank, this one too, stores the number that a code stands
// for, code / scale in bf16. The next pass rounds that with the same scale and gets the code again, so operands are
// those of weights that were gathered as they are, bit for bit, and stored weights are the same on all ranks.
//
// What is rounded is kept: this rank's shard of such a bucket is a tensor of its own, which the optimizer updates. It
// is also what the amax of the weight is taken of, by its owners, instead of by every pass from what is stored.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_buckets.h"
#include "comm/gather_plan.h"
#include "core/autograd/delayed_scales.h"

namespace mantissa {

class CodedGather {
 public:
  // The streams of the updates and of the gathers. Everything passed by reference must outlive the object. `scales`
  // leaves the amaxes of these weights to record_amaxes() from now on.
  CodedGather(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute, Stream& gather,
              const CodedWeights& coded, DelayedScales& scales);

  bool takes(int bucket) const { return plan_.buckets[static_cast<size_t>(bucket)].coded(); }
  // (shard_numel) of the bucket's dtype: this rank's shard as it is before it is rounded.
  const Tensor& shard(int bucket) const { return shards_[static_cast<size_t>(bucket)]; }
  // Whether the scales are those of amaxes. Until then, weights must be gathered as they are, since passes that look
  // for amaxes do not round.
  bool ready() const { return scales_.calibrated(); }

  // Into the records of this step: the amaxes of this rank's shards. Before the records are gathered.
  void record_amaxes();

  // Queues the rows of a bucket that takes() says yes to. Collective.
  void send(int bucket);
  // Moves on what is under way.
  void progress();
  // Waits for all of it; the stream of the updates goes on with the new weights.
  void finish();

  // What the transport is to be told of: Communicator::register_buffers().
  std::vector<Tensor> buffers() const;
  size_t shard_bytes() const { return plan_.shard_bytes; }
  size_t buffer_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<Storage> rows;
    int bucket = -1;  // under way
    std::unique_ptr<Work> work;
    std::unique_ptr<Event> emptied;  // on the stream of the gathers
  };

  // Elements of a piece where they lie in the rows of all ranks.
  Tensor in_row(const Slot& slot, int bucket, int rank, const GatherPlan::Piece& piece) const;
  // Rows that have come, into the weights.
  void unpack(Slot& slot);

  FlatBuckets& buckets_;
  Communicator& communicator_;
  Backend& backend_;
  Stream &compute_, &gather_;
  DelayedScales& scales_;
  GatherPlan plan_;
  std::vector<Tensor> shards_;  // by bucket; undefined where there are no rows
  std::array<Slot, GatherPlan::kSlots> slots_;
  size_t next_ = 0;  // slot
};

}  // namespace mantissa
