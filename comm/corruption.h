// Corruption: a finding of the checks for silent data corruption. Digests (core/kernels/digest/digest.h) of the same
// data at two places or times must agree; a difference names rank and tensor, and 256 elements if one of them changed.
#pragma once

#include "comm/flat_buckets.h"
#include "core/kernels/digest/state_digests.h"

namespace mantissa {

enum class CorruptData : int32_t {
  // State of the optimizer, in the order of StateDigests::Part.
  kMaster,
  kWeight,
  kCompensation,
  kM,
  kV,
  kMAbsmax,
  kVAbsmax,
  kWorkingWeight,   // that passes read
  kSentGradient,    // on the way from `rank` to `receiver`
  kSummedGradient,  // likewise: a sum that its owner sends to replicas
  kGradient,        // of a pass that was run again
};

struct Corruption {
  CorruptData data = CorruptData::kMaster;
  int32_t parameter = -1;  // index in the ParameterSet
  int32_t rank = -1;       // -1: the copies of ranks differ, and the right copy is unknown
  int32_t receiver = -1;   // of data on its way
  // Elements of the parameter, at least one of them changed. For scales of codes: the elements of their blocks.
  int64_t begin = 0, count = 0;
  int64_t part = 0;     // the first element of the compared part, which holds them
  int32_t bit = -1;     // the changed bit, if only one bit changed
  uint32_t update = 0;  // the optimizer's update that read corrupted state; 0: no update
};

// The finding if the digests of these elements of a parameter differ; has_scales: digests of codes and, behind the last
// tile of them, of their scales.
Corruption corruption_of(CorruptData data, const Segment& segment, int rank, const Digest& expected,
                         const Digest& found, bool has_scales = false);

// "rank 1 (node b): first moment of 'blocks.0.mlp.up.weight', elements [256, 512) (bit 30)". `hosts` by rank, if any.
std::string to_text(const Corruption& corruption, const ParameterSet& parameters,
                    std::span<const std::string> hosts = {});

// The findings of all ranks, in rank order: at most kMostFindings of each. The same on every rank. Collective; blocks.
constexpr size_t kMostFindings = 16;
std::vector<Corruption> gather_findings(Communicator& communicator, std::vector<Corruption> mine);

// Finds gradients that change on their way between ranks. A sender takes digests of parts of parameters in the sent
// memory, and a receiver of the data to be added up. Likewise for replicated sums, from owner to replicas.
class WireDigests {
 public:
  // Everything passed by reference must outlive the object.
  WireDigests(const BucketLayout& layout, const ExchangeGroups& groups, Backend& backend);

  void begin(Stream& stream);  // forgets the digests of the last reduction
  // all (slots, n): what this rank sends of a bucket in a stage, to each member its part.
  void sent(int bucket, size_t stage, const Tensor& all, Stream& stream);
  // rows (slots * N, n): the members' contributions to this rank's part; rows of a slot are slot_stride elements behind
  // those of the slot before.
  void received(int bucket, size_t stage, const SharedRows& rows, int64_t slot_stride, Stream& stream);
  // whole (numel) of replicated sums: of this rank's shard when it is sent, of all shards when they are there.
  void summed(int bucket, const Tensor& whole, Stream& stream) {
    has_sums_ = true;
    take(kSummed, bucket, whole, {communicator_.rank()}, stream);
  }
  void gathered(int bucket, const Tensor& whole, Stream& stream) { take(kGathered, bucket, whole, {}, stream); }

  // The differences, the same on every rank. After the reduction; collective; blocks.
  std::vector<Corruption> compare(Stream& stream);

 private:
  enum Table : size_t { kSent, kReceived, kSummed, kGathered, kTables };
  struct Piece {
    Segment segment;    // the offset counts from the shard's start
    int rank = 0;       // whose shard
    int64_t shard = 0;  // its number in the bucket
  };
  // The shards with which a stage begins and ends on this rank, as numbers in a bucket.
  struct Stage {
    int slots = 1, members = 1, span = 1;
    int64_t begin = 0, count = 0;            // sent by this rank
    int64_t part_begin = 0, part_count = 0;  // received by it
    int64_t sent = 0, received = 0;          // where its digests begin in the tables
    std::vector<int64_t> own{};              // by piece: its number among those received, or -1
    int64_t own_count = 0;
  };

  static constexpr int64_t kDigestBytes = sizeof(Digest);
  Tensor record(Table table, int64_t index) const {
    return digests_.slice((begin_[table] + index) * kDigestBytes, kDigestBytes);
  }
  // Adds the digest of a piece, from element `begin` of `part` on. `part` may be a row of codes.
  void add_piece(const Piece& piece, const Tensor& part, int64_t begin, const Tensor& record, Stream& stream);
  // Digests of the pieces of a whole bucket, or of one rank's shard.
  void take(Table table, int bucket, const Tensor& whole, std::optional<int> rank, Stream& stream);
  void make_stages(const ExchangeGroups& groups);
  // Calls f(piece, number) for the pieces of a bucket in some shards.
  template <typename F>
  void for_each_piece(int bucket, int64_t first_shard, int64_t shards, const F& f) const {
    const auto index = static_cast<size_t>(bucket);
    for (int64_t number = first_piece_[index]; number < first_piece_[index + 1]; ++number) {
      const Piece& piece = pieces_[static_cast<size_t>(number)];
      if (piece.shard >= first_shard && piece.shard < first_shard + shards) f(piece, number);
    }
  }
  int64_t pieces() const { return std::ssize(pieces_); }

  const BucketLayout& layout_;
  Communicator& communicator_;
  Backend& backend_;
  std::vector<Piece> pieces_;         // of all shards, by bucket
  std::vector<int64_t> first_piece_;  // of each bucket, and the number of all pieces
  std::vector<Stage> stages_;
  std::array<int64_t, kTables + 1> begin_{};  // of each table, in records
  Tensor zeros_, digests_;
  bool has_sums_ = false;   // in the last reduction
  bool has_codes_ = false;  // in the first stage of it
};

}  // namespace mantissa
