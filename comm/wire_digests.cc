#include "comm/wire_digests.h"

#include "core/kernels/reduction/args.h"

namespace mantissa {
namespace {

constexpr int64_t kDigestBytes = sizeof(Digest);

// Row `rank` of rows that may lie apart from each other.
Tensor row_of(const SharedRows& rows, int rank) {
  const Tensor& first = rows.rows;
  const int64_t bytes = first.dim(1) * size_bytes(first.dtype());
  const auto storage =
      std::make_shared<Storage>(first.raw() + rank * rows.stride * size_bytes(first.dtype()),
                                static_cast<size_t>(bytes), first.device(), [kept = first]() mutable { kept = {}; });
  return Tensor(storage, first.dtype(), Shape{first.dim(1)});
}

}  // namespace

WireDigests::WireDigests(const BucketLayout& layout, Communicator& communicator, Backend& backend)
    : layout_(layout), communicator_(communicator), backend_(backend) {
  for (int bucket = 0; bucket < static_cast<int>(layout.buckets().size()); ++bucket) {
    first_piece_.push_back(static_cast<int64_t>(pieces_.size()));
    for (int rank = 0; rank < communicator.size(); ++rank) {
      for (const Segment& segment : layout.shard_segments(bucket, rank)) {
        pieces_.push_back({.segment = segment, .rank = rank, .own = own_pieces_});
        if (rank == communicator.rank()) ++own_pieces_;
      }
    }
  }
  const auto all = static_cast<int64_t>(pieces_.size());
  first_piece_.push_back(all);
  const int64_t counts[] = {all, own_pieces_ * communicator.size(), all, all};
  for (size_t table = 0; table < kTables; ++table) begin_[table + 1] = begin_[table] + counts[table];
  const Shape shape{begin_[kTables] * kDigestBytes};
  zeros_ = backend.make_tensor(DType::kU8, shape, "empty digests of gradients");
  digests_ = backend.make_tensor(DType::kU8, shape, "digests of gradients");
}

Tensor WireDigests::record(Table table, int64_t index) const {
  return digests_.slice((begin_[table] + index) * kDigestBytes, kDigestBytes);
}

void WireDigests::begin(Stream& stream) {
  backend_.copy(zeros_, digests_, stream);
  has_sums_ = false;
}

void WireDigests::take(Table table, int bucket, const Tensor& whole, int rank, Stream& stream) {
  const int64_t shard = layout_.bucket(bucket).shard_numel;
  const auto index = static_cast<size_t>(bucket);
  for (int64_t number = first_piece_[index]; number < first_piece_[index + 1]; ++number) {
    const Piece& piece = pieces_[static_cast<size_t>(number)];
    if (rank >= 0 && piece.rank != rank) continue;
    const Tensor part = whole.slice(piece.rank * shard + piece.segment.offset, piece.segment.count);
    backend_.run(DigestArgs{.x = part, .record = record(table, number)}, stream);
  }
}

void WireDigests::received(int bucket, const SharedRows& rows, Stream& stream) {
  const auto index = static_cast<size_t>(bucket);
  for (int sender = 0; sender < communicator_.size(); ++sender) {
    const Tensor row = row_of(rows, sender);
    for (int64_t number = first_piece_[index]; number < first_piece_[index + 1]; ++number) {
      const Piece& piece = pieces_[static_cast<size_t>(number)];
      if (piece.rank != communicator_.rank()) continue;
      backend_.run(DigestArgs{.x = row.slice(piece.segment.offset, piece.segment.count),
                              .record = record(kReceived, sender * own_pieces_ + piece.own)},
                   stream);
    }
  }
}

std::vector<Corruption> WireDigests::compare(Stream& stream) {
  std::vector<Digest> mine(static_cast<size_t>(begin_[kTables]));
  backend_.download(digests_, mine.data(), stream);
  const auto at = [this](const std::vector<Digest>& digests, Table table, int64_t index) {
    return digests[static_cast<size_t>(begin_[table] + index)];
  };
  // The tables of sent contributions and of sums are equally long on all ranks; the one between them may differ.
  std::vector<Digest> known(mine.begin(), mine.begin() + begin_[kReceived]);
  known.insert(known.end(), mine.begin() + begin_[kSummed], mine.begin() + begin_[kGathered]);
  const std::vector<std::vector<Digest>> all = all_gather_arrays(communicator_, known);
  const auto count = static_cast<int64_t>(pieces_.size());
  const int me = communicator_.rank();
  std::vector<Corruption> found;
  const auto compare = [&](CorruptData data, const Piece& piece, int sender, const Digest& expected,
                           const Digest& arrived) {
    if (expected == arrived) return;
    const Segment& segment = piece.segment;
    found.push_back(corruption_of(data, segment.parameter, sender, segment.begin, segment.count, expected, arrived));
    found.back().receiver = me;
  };
  for (int64_t number = 0; number < count; ++number) {
    const Piece& piece = pieces_[static_cast<size_t>(number)];
    if (has_sums_) {
      const std::vector<Digest>& owner = all[static_cast<size_t>(piece.rank)];
      compare(CorruptData::kSummedGradient, piece, piece.rank, owner[static_cast<size_t>(count + number)],
              at(mine, kGathered, number));
    }
    if (piece.rank != me) continue;
    for (int sender = 0; sender < communicator_.size(); ++sender) {
      compare(CorruptData::kSentGradient, piece, sender, all[static_cast<size_t>(sender)][static_cast<size_t>(number)],
              at(mine, kReceived, sender * own_pieces_ + piece.own));
    }
  }
  return gather_findings(communicator_, std::move(found));
}

}  // namespace mantissa
