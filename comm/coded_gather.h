// CodedGather: the all-gather of updated weights as 8-bit codes.
//
// All ranks know the step's new scales before they update. If every product rounds a weight by delayed scaling, its
// owner rounds it with the next scale and sends the codes. Every rank, the owner too, stores code / scale in bf16. The
// next pass rounds it with the same scale and gets the same code. So operands are bit for bit as if weights were
// gathered as stored, and stored weights are the same on all ranks. The optimizer updates an unrounded copy of the
// owner's shard, and the owner takes the amax of the weight from it.
//
// GatherPlan: the positions of the bytes (pure arithmetic, the same on every rank). For a bucket with such weights,
// each rank sends a row: the pieces of its shard, with a byte for each coded element, the others as stored. All rows
// are as long as the longest, in multiples of 64 bytes. If rows would not be shorter than shards, the bucket travels as
// stored. Rows of all ranks arrive in a slot and go to the weights from there. Buckets take the few slots in turns.
#pragma once

#include "comm/flat_buckets.h"
#include "core/autograd/delayed_scales.h"

namespace mantissa {

// By parameter index: the format in whose codes the weight is sent; nothing: as stored. Empty: all as stored.
using CodedWeights = std::vector<std::optional<Format>>;

// Matrices of linear layers, stored in bf16, whose forward and input-gradient products round the weight to the same
// 8-bit format by delayed scaling. Not embeddings, even as the head: they are read by rows. Requires working dtypes.
CodedWeights coded_weights(const ParameterSet& parameters, const PrecisionPolicy& policy);

struct GatherPlan {
  static constexpr int kSlots = 2;  // one bucket is made into rows while another travels

  struct Piece {
    int parameter = -1;
    int64_t offset = 0;      // of its first element in the bucket
    int64_t count = 0;       // elements
    int64_t row_offset = 0;  // of its first byte in the rank's row: a multiple of 64
    std::optional<Format> format{};
  };
  struct Bucket {
    int64_t row_bytes = 0;                  // 0: the bucket travels as stored
    std::vector<std::vector<Piece>> ranks;  // by rank
    bool coded() const { return row_bytes > 0; }
  };

  std::vector<Bucket> buckets;
  size_t slot_bytes = 0;                    // rows of all ranks, of the bucket with the longest rows
  size_t shard_bytes = 0;                   // one rank's unrounded shards of coded buckets
  size_t sent_bytes = 0, stored_bytes = 0;  // bytes from a rank to another in a step, with codes and without

  bool empty() const { return slot_bytes == 0; }
  const Bucket& bucket(int index) const { return buckets[static_cast<size_t>(index)]; }
};

GatherPlan plan_gather(const BucketLayout& layout, const CodedWeights& coded);  // `coded`: by parameter, or empty

class CodedGather {
 public:
  // `compute` and `gather` are the streams of the updates and of the gathers. Everything passed by reference must
  // outlive the object. From now on record_amaxes() records the amaxes of these weights in `scales`.
  CodedGather(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& compute, Stream& gather,
              const CodedWeights& coded, DelayedScales& scales);

  bool takes(int bucket) const { return plan_.bucket(bucket).coded(); }
  // (shard_numel) of the bucket's dtype: this rank's unrounded shard.
  const Tensor& shard(int bucket) const { return shards_[static_cast<size_t>(bucket)]; }
  // Whether all scales come from amaxes. Until then weights are gathered as stored: calibrating passes do not round.
  bool ready() const { return scales_.calibrated(); }

  // Records the amaxes of this rank's shards. Call it before the records of the step are gathered.
  void record_amaxes();

  void send(int bucket);  // Queues the rows of a bucket for which takes() is true. Collective.
  void progress();        // advances the gathers without blocking
  void finish();          // Waits for all gathers; `compute` continues with the new weights.

  // The buffers for Communicator::register_buffers().
  std::vector<Tensor> buffers() const;
  size_t shard_bytes() const { return plan_.shard_bytes; }
  size_t buffer_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<Storage> rows;
    int bucket = -1;  // whose rows travel; -1: none
    std::unique_ptr<StagedWork> work;
    std::unique_ptr<Event> emptied;  // on the stream of the gathers
  };

  const std::vector<GatherPlan::Piece>& pieces(int bucket, int rank) const {
    return plan_.bucket(bucket).ranks[static_cast<size_t>(rank)];
  }
  DelayedScales::Slot scale_slot(const GatherPlan::Piece& piece) const {
    return scales_.slot(buckets_.parameters()[piece.parameter], Role::kWeight, *piece.format);
  }
  // The piece in this rank's unrounded shard, and in a row of a slot.
  Tensor in_shard(int bucket, const GatherPlan::Piece& piece) const;
  Tensor in_row(const Slot& slot, int bucket, int rank, const GatherPlan::Piece& piece) const;
  void unpack(Slot& slot);  // Moves rows that have arrived into the weights. Waits for them.

  FlatBuckets& buckets_;
  const ExchangeGroups groups_;
  Communicator& communicator_;  // all ranks
  Backend& backend_;
  Stream &compute_, &gather_;
  DelayedScales& scales_;
  GatherPlan plan_;
  std::vector<Tensor> shards_;  // by bucket; undefined for buckets without rows
  std::array<Slot, GatherPlan::kSlots> slots_;
  size_t next_ = 0;  // slot
};

}  // namespace mantissa
