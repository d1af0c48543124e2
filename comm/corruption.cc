#include "comm/corruption.h"

#include "core/base/round_up.h"
#include "core/kernels/reduction/args.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

// By CorruptData.
constexpr const char* kNames[] = {"master weight",
                                  "weight (its own master)",
                                  "compensation",
                                  "first moment",
                                  "second moment",
                                  "scales of the first moment",
                                  "scales of the second moment",
                                  "working weight",
                                  "gradient on the wire",
                                  "summed gradient on the wire",
                                  "gradient"};
static_assert(std::size(kNames) == static_cast<size_t>(CorruptData::kGradient) + 1);

// Elements of an item.
int64_t unit_of(CorruptData data) {
  return data == CorruptData::kMAbsmax || data == CorruptData::kVAbsmax ? kDynamicBlock : 1;
}

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

Corruption corruption_of(CorruptData data, const Segment& segment, int rank, const Digest& expected,
                         const Digest& found) {
  const auto [parameter, begin, count, offset] = segment;
  Corruption corruption{
      .data = data, .parameter = parameter, .rank = rank, .begin = begin, .count = count, .part = begin};
  const int64_t unit = unit_of(data);
  const ChangedTile changed = changed_tile(expected, found, divide_up(count, unit));
  if (changed.begin < 0) return corruption;
  corruption.begin = begin + changed.begin * unit;
  corruption.count = std::min(kDigestTile * unit, count - changed.begin * unit);
  corruption.bit = changed.bit;
  return corruption;
}

std::string to_text(const Corruption& corruption, const ParameterSet& parameters, std::span<const std::string> hosts) {
  const auto rank_text = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return fmt::format("rank {}", rank) +
           (index < hosts.size() ? fmt::format(" (node {})", hosts[index]) : std::string());
  };
  std::string text = corruption.rank < 0 ? std::string("ranks differ") : rank_text(corruption.rank);
  if (corruption.receiver >= 0) text += " to " + rank_text(corruption.receiver);
  text += fmt::format(": {} of '{}', ", kNames[static_cast<size_t>(corruption.data)],
                      parameters[corruption.parameter].name);
  text += fmt::format("elements [{}, {})", corruption.begin, corruption.begin + corruption.count);
  if (corruption.bit >= 0) text += fmt::format(" (bit {})", corruption.bit);
  if (corruption.update > 0) text += fmt::format(", read by update {}", corruption.update);
  return text;
}

std::vector<Corruption> gather_findings(Communicator& communicator, std::vector<Corruption> mine) {
  if (mine.size() > kMostFindings) mine.resize(kMostFindings);
  std::vector<Corruption> all;
  for (const std::vector<Corruption>& findings : all_gather_arrays(communicator, mine)) {
    all.insert(all.end(), findings.begin(), findings.end());
  }
  return all;
}

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
    found.push_back(corruption_of(data, piece.segment, sender, expected, arrived));
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
