// WireDigests: finds gradients that change on their way between ranks. For each receiver, a sender takes a digest of
// each part of a parameter, in the memory that it is sent from. The receiver takes a digest of the data to be added up.
// A replicated sum is checked likewise, from its owner to all replicas.
#pragma once

#include <array>

#include "comm/corruption.h"
#include "comm/flat_buckets.h"

namespace mantissa {

class WireDigests {
 public:
  // Everything passed by reference must outlive the object.
  WireDigests(const BucketLayout& layout, Communicator& communicator, Backend& backend);

  // Forgets the digests of the last reduction.
  void begin(Stream& stream);
  // whole (numel): what this rank sends of a bucket, to rank r in shard r.
  void sent(int bucket, const Tensor& whole, Stream& stream) { take(kSent, bucket, whole, -1, stream); }
  // rows (N, shard): the contributions to this rank's shard.
  void received(int bucket, const SharedRows& rows, Stream& stream);
  // whole (numel) of replicated sums: of this rank's shard when it is sent, of all shards when they are there.
  void summed(int bucket, const Tensor& whole, Stream& stream) {
    has_sums_ = true;
    take(kSummed, bucket, whole, communicator_.rank(), stream);
  }
  void gathered(int bucket, const Tensor& whole, Stream& stream) { take(kGathered, bucket, whole, -1, stream); }

  // The differences, the same on every rank. After the reduction; collective; blocks.
  std::vector<Corruption> compare(Stream& stream);

 private:
  enum Table : size_t { kSent, kReceived, kSummed, kGathered, kTables };
  struct Piece {
    Segment segment;  // the offset counts from the shard's start
    int rank = 0;     // whose shard
    int64_t own = 0;  // number among the pieces of this rank's shards
  };

  Tensor record(Table table, int64_t index) const;
  // Digests of the pieces of a whole bucket, or of one rank's shard unless `rank` is -1.
  void take(Table table, int bucket, const Tensor& whole, int rank, Stream& stream);

  const BucketLayout& layout_;
  Communicator& communicator_;
  Backend& backend_;
  std::vector<Piece> pieces_;         // of all shards, by bucket
  std::vector<int64_t> first_piece_;  // of each bucket, and the number of all pieces
  int64_t own_pieces_ = 0;
  std::array<int64_t, kTables + 1> begin_{};  // of each table, in records
  Tensor zeros_, digests_;
  bool has_sums_ = false;  // in the last reduction
};

}  // namespace mantissa
