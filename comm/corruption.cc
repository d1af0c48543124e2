#include "comm/corruption.h"

#include "comm/reduction_buffers.h"
#include "core/base/round_up.h"
#include "core/kernels/reduction/args.h"
#include "core/quant/coded_rows.h"
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

// The row at `offset` elements behind the first row.
Tensor row_at(const Tensor& first, int64_t offset) {
  const int64_t bytes = first.dim(1) * size_bytes(first.dtype());
  const auto storage =
      std::make_shared<Storage>(first.raw() + offset * size_bytes(first.dtype()), static_cast<size_t>(bytes),
                                first.device(), [kept = first]() mutable { kept = {}; });
  return Tensor(storage, first.dtype(), Shape{first.dim(1)});
}

}  // namespace

Corruption corruption_of(CorruptData data, const Segment& segment, int rank, const Digest& expected,
                         const Digest& found, bool has_scales) {
  const auto [parameter, begin, count, offset] = segment;
  Corruption corruption{
      .data = data, .parameter = parameter, .rank = rank, .begin = begin, .count = count, .part = begin};
  const int64_t scales = round_up(count, kDigestTile);  // the first one, as an item
  const int64_t items = has_scales ? scales + divide_up(count, kCodeBlock) : divide_up(count, unit_of(data));
  ChangedTile changed = changed_tile(expected, found, items);
  if (changed.begin < 0) return corruption;
  const bool is_scale = has_scales && changed.begin >= scales;
  if (is_scale) changed.begin -= scales;
  const int64_t unit = is_scale ? kCodeBlock : unit_of(data);
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

WireDigests::WireDigests(const BucketLayout& layout, const ExchangeGroups& groups, Backend& backend)
    : layout_(layout), communicator_(groups.all()), backend_(backend) {
  for (int bucket = 0; bucket < static_cast<int>(layout.buckets().size()); ++bucket) {
    first_piece_.push_back(pieces());
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const int shard = shard_after_stages(rank, layout.stages());
      for (const Segment& segment : layout.shard_segments(bucket, rank)) {
        pieces_.push_back({.segment = segment, .rank = rank, .shard = shard});
      }
    }
  }
  first_piece_.push_back(pieces());
  make_stages(groups);
  int64_t counts[kTables] = {0, 0, pieces(), pieces()};
  for (const Stage& stage : stages_) {
    counts[kSent] += stage.slots * pieces();
    counts[kReceived] += stage.slots * stage.members * stage.own_count;
  }
  for (size_t table = 0; table < kTables; ++table) begin_[table + 1] = begin_[table] + counts[table];
  const Shape shape{begin_[kTables] * kDigestBytes};
  zeros_ = backend.make_tensor(DType::kU8, shape, "empty digests of gradients");
  digests_ = backend.make_tensor(DType::kU8, shape, "digests of gradients");
}

void WireDigests::make_stages(const ExchangeGroups& groups) {
  const std::vector<StageShape> shapes = stage_shapes(layout_);
  int64_t begin = 0, sent = 0, received = 0;
  for (size_t index = 0; index < shapes.size(); ++index) {
    const ExchangeGroups::Stage& group = groups.stages()[index];
    Stage stage{.slots = shapes[index].slots, .members = group.members, .span = static_cast<int>(group.span)};
    stage.begin = begin;
    stage.count = group.shards * group.members;
    stage.part_begin = begin = begin + group.group->rank() * group.shards;
    stage.part_count = group.shards;
    stage.sent = sent;
    stage.received = received;
    for (const Piece& piece : pieces_) {
      const bool is_own = piece.shard >= begin && piece.shard < begin + group.shards;
      stage.own.push_back(is_own ? stage.own_count++ : -1);
    }
    sent += stage.slots * pieces();
    received += stage.slots * stage.members * stage.own_count;
    stages_.push_back(std::move(stage));
  }
}

void WireDigests::begin(Stream& stream) {
  backend_.copy(zeros_, digests_, stream);
  has_sums_ = false;
}

void WireDigests::add_piece(const Piece& piece, const Tensor& part, int64_t begin, const Tensor& record,
                            Stream& stream) {
  const int64_t count = piece.segment.count;
  backend_.run(DigestArgs{.x = part.slice(begin, count), .record = record}, stream);
  if (!is_coded(part.dtype())) return;
  has_codes_ = true;
  const int64_t scale = coded_row_numel(part.numel()) + begin / kCodeBlock;
  backend_.run(DigestArgs{.x = part.slice(scale, divide_up(count, kCodeBlock)),
                          .record = record,
                          .first = round_up(count, kDigestTile)},
               stream);
}

void WireDigests::take(Table table, int bucket, const Tensor& whole, std::optional<int> rank, Stream& stream) {
  for_each_piece(bucket, 0, layout_.ranks(), [&](const Piece& piece, int64_t number) {
    if (rank && piece.rank != *rank) return;
    const int64_t begin = piece.shard * layout_.bucket(bucket).shard_numel + piece.segment.offset;
    const Tensor part = whole.slice(begin, piece.segment.count);
    backend_.run(DigestArgs{.x = part, .record = record(table, number)}, stream);
  });
}

void WireDigests::sent(int bucket, size_t index, const Tensor& all, Stream& stream) {
  const Stage& stage = stages_[index];
  const int64_t shard = layout_.bucket(bucket).shard_numel;
  const int64_t items = all.dim(1) / stage.members;
  for (int64_t slot = 0; slot < all.dim(0); ++slot) {
    for_each_piece(bucket, stage.begin, stage.count, [&](const Piece& piece, int64_t number) {
      const int64_t member = (piece.shard - stage.begin) / stage.part_count;
      const int64_t begin = (piece.shard - stage.begin) % stage.part_count * shard + piece.segment.offset;
      add_piece(piece, all.slice(slot * all.dim(1) + member * items, items), begin,
                record(kSent, stage.sent + slot * pieces() + number), stream);
    });
  }
}

void WireDigests::received(int bucket, size_t index, const SharedRows& rows, int64_t slot_stride, Stream& stream) {
  const Stage& stage = stages_[index];
  const int64_t shard = layout_.bucket(bucket).shard_numel;
  for (int64_t from = 0; from < rows.rows.dim(0); ++from) {  // slot by slot
    const int64_t slot = from / stage.members, member = from % stage.members;
    const Tensor row = row_at(rows.rows, slot * slot_stride + member * rows.stride);
    for_each_piece(bucket, stage.part_begin, stage.part_count, [&](const Piece& piece, int64_t number) {
      const int64_t begin = (piece.shard - stage.part_begin) * shard + piece.segment.offset;
      const int64_t own = stage.own[static_cast<size_t>(number)];
      add_piece(piece, row, begin, record(kReceived, stage.received + from * stage.own_count + own), stream);
    });
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
  const int me = communicator_.rank();
  std::vector<Corruption> found;
  const auto compare = [&](CorruptData data, const Piece& piece, int sender, const Digest& expected,
                           const Digest& arrived, bool has_scales = false) {
    if (expected == arrived) return;
    found.push_back(corruption_of(data, piece.segment, sender, expected, arrived, has_scales));
    found.back().receiver = me;
  };
  for (int64_t number = 0; number < pieces(); ++number) {
    const Piece& piece = pieces_[static_cast<size_t>(number)];
    if (has_sums_) {
      const std::vector<Digest>& owner = all[static_cast<size_t>(piece.rank)];
      compare(CorruptData::kSummedGradient, piece, piece.rank, owner[static_cast<size_t>(begin_[kReceived] + number)],
              at(mine, kGathered, number));
    }
    for (const Stage& stage : stages_) {
      const int64_t own = stage.own[static_cast<size_t>(number)];
      for (int64_t from = 0; own >= 0 && from < stage.slots * stage.members; ++from) {
        const int64_t slot = from / stage.members, member = from % stage.members;
        const auto sender = static_cast<int>(me + (member - me / stage.span % stage.members) * stage.span);
        const auto place = static_cast<size_t>(stage.sent + slot * pieces() + number);
        compare(CorruptData::kSentGradient, piece, sender, all[static_cast<size_t>(sender)][place],
                at(mine, kReceived, stage.received + from * stage.own_count + own),
                has_codes_ && &stage == &stages_[0]);
      }
    }
  }
  return gather_findings(communicator_, std::move(found));
}

}  // namespace mantissa
