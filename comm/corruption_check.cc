#include "comm/corruption_check.h"

#include <fmt/ranges.h>

#include "core/kernels/reduction/args.h"

namespace mantissa {
namespace {

// The digest that most ranks have; nothing if no digest has more ranks than each other one. digest_of(rank's items).
template <typename Items, typename DigestOf>
std::optional<Digest> majority_of(const std::vector<Items>& ranks, const DigestOf& digest_of) {
  std::map<std::pair<uint64_t, uint64_t>, int> votes;
  for (const Items& items : ranks) ++votes[{digest_of(items).sum, digest_of(items).weighted}];
  const auto by_votes = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::ranges::max_element(votes, by_votes);
  const auto as_many = std::ranges::count_if(votes, [&](const auto& v) { return v.second == most->second; });
  if (as_many > 1) return std::nullopt;
  return Digest{most->first.first, most->first.second};
}

// Findings of all ranks, with owners as receivers. If an owner sent corrupted weights, one finding names it instead.
std::vector<Corruption> name_owners(const std::vector<Corruption>& found, int ranks) {
  std::map<std::pair<int32_t, int64_t>, std::vector<Corruption>> places;  // by parameter and compared part
  for (const Corruption& corruption : found) places[{corruption.parameter, corruption.part}].push_back(corruption);
  std::vector<Corruption> all;
  for (auto& [place, findings] : places) {
    const int owner = findings[0].receiver;
    const auto others = std::ranges::count_if(findings, [&](const auto& f) { return f.rank != owner; });
    const bool is_unknown = findings[0].rank < 0;  // then every rank says so
    const bool all_others = ranks > 1 && others == ranks - 1, owner_too = others < std::ssize(findings);
    if (is_unknown || (owner >= 0 && all_others && (owner_too || ranks > 2))) {
      findings.resize(1);
      findings[0].rank = is_unknown ? -1 : owner;
    }
    for (Corruption& corruption : findings) {
      corruption.receiver = -1;
      all.push_back(corruption);
    }
  }
  return all;
}

}  // namespace

CorruptionCheck::CorruptionCheck(ShardedState& state) : state_(state) {
  MANTISSA_CHECK(state.optimizer.has_digests(), "[corruption_check] the optimizer must have digests");
  make_pieces();
  const size_t parts = static_cast<size_t>(state.parameters().size() * state.reducer.lanes().slots);
  const size_t most = std::max(pieces_.size(), parts);
  digests_ = state.backend.make_tensor(DType::kU8, {static_cast<int64_t>(most * sizeof(Digest))}, "digests of weights");
}

void CorruptionCheck::make_pieces() {
  const BucketLayout& layout = state_.buckets.layout();
  const int me = state_.communicator.rank(), ranks = state_.communicator.size();
  const std::vector<DigestedPiece>& own = state_.optimizer.digested_pieces();
  const bool is_sharded = state_.reducer.config().sharding == Sharding::kSharded;
  std::vector<size_t> counts(static_cast<size_t>(ranks));
  for (int bucket = 0; bucket < state_.buckets.size(); ++bucket) {
    const bool is_coded = std::ranges::any_of(
        own, [bucket](const DigestedPiece& piece) { return piece.bucket == bucket && piece.is_coded; });
    for (int owner = 0; owner < (is_sharded ? ranks : 1); ++owner) {
      const auto segments = is_sharded ? layout.shard_segments(bucket, owner) : layout.bucket(bucket).segments;
      const int64_t begin = is_sharded ? layout.shard_begin(bucket, owner) : 0;
      for (Segment segment : segments) {
        const size_t number = counts[static_cast<size_t>(owner)]++;
        // One copy in common: its owner looks after it.
        if (state_.buckets.weights_in_common() && owner != me) continue;
        segment.offset += begin;
        pieces_.push_back({.bucket = bucket,
                           .segment = segment,
                           .owner = is_sharded ? owner : -1,
                           .own = number,
                           .is_coded = is_coded});
        weights_.push_back(state_.buckets.weight(bucket).slice(segment.offset, segment.count));
      }
    }
  }
}

std::vector<Digest> CorruptionCheck::digests_of(const std::vector<Tensor>& tensors) {
  std::vector<Digest> digests(tensors.size());
  if (tensors.empty()) return digests;
  const Tensor records = digests_.slice(0, static_cast<int64_t>(digests.size() * sizeof(Digest)));
  state_.backend.upload(digests.data(), records, state_.stream);
  for (size_t index = 0; index < tensors.size(); ++index) {
    const Tensor record = records.slice(static_cast<int64_t>(index * sizeof(Digest)), sizeof(Digest));
    state_.backend.run(DigestArgs{.x = tensors[index], .record = record}, state_.stream);
  }
  state_.backend.download(records, digests.data(), state_.stream);
  return digests;
}

std::vector<Corruption> CorruptionCheck::compare_weights(const std::vector<StateDigests>& written) {
  Communicator& communicator = state_.communicator;
  const bool is_replicated = state_.reducer.config().sharding == Sharding::kReplicated;
  std::vector<Digest> records, coded;  // of this rank's pieces; of those gathered as codes
  records.reserve(written.size());
  for (size_t index = 0; index < written.size(); ++index) {
    records.push_back(written[index].written[state_.optimizer.digested_pieces()[index].weight_part()]);
  }
  const std::vector<Digest> found = digests_of(weights_);
  for (size_t index = 0; index < pieces_.size(); ++index) {
    if (pieces_[index].is_coded) coded.push_back(found[index]);
  }
  using ByRank = std::vector<std::vector<Digest>>;
  const ByRank all_records = is_replicated ? ByRank{records} : all_gather_arrays(communicator, records);
  const ByRank all_coded = coded.empty() ? ByRank() : all_gather_arrays(communicator, coded);  // alike on all ranks

  std::vector<Corruption> mine;
  size_t coded_index = 0;
  for (size_t index = 0; index < pieces_.size(); ++index) {
    const WeightPiece& piece = pieces_[index];
    std::optional<Digest> expected;
    if (piece.is_coded) {
      expected = majority_of(all_coded, [&](const auto& digests) { return digests[coded_index]; });
      ++coded_index;
    } else {
      expected = all_records[is_replicated ? 0 : static_cast<size_t>(piece.owner)][piece.own];
    }
    if (expected == found[index]) continue;
    mine.push_back(corruption_of(CorruptData::kWorkingWeight, piece.segment, expected ? communicator.rank() : -1,
                                 expected.value_or(found[index]), found[index]));
    mine.back().receiver = piece.is_coded ? -1 : piece.owner;  // the owner, until all findings are together
  }
  return name_owners(gather_findings(communicator, std::move(mine)), communicator.size());
}

std::vector<Corruption> CorruptionCheck::updates() {
  std::vector<Corruption> mine;
  const std::vector<StateDigests> digests = state_.optimizer.read_digests();
  for (size_t index = 0; index < digests.size(); ++index) {
    if (digests[index].bad_update == 0) continue;
    mine.push_back(corruption_of(static_cast<CorruptData>(digests[index].bad_part),
                                 state_.optimizer.digested_pieces()[index].segment, state_.communicator.rank(),
                                 digests[index].bad_expected, digests[index].bad_found));
    mine.back().update = digests[index].bad_update;
  }
  std::vector<Corruption> all = gather_findings(state_.communicator, std::move(mine));
  if (!all.empty() || state_.reducer.config().sharding == Sharding::kSharded) return all;
  return replicas(digests);
}

std::vector<Corruption> CorruptionCheck::replicas(const std::vector<StateDigests>& written) {
  const std::vector<std::vector<StateDigests>> all = all_gather_arrays(state_.communicator, written);
  std::vector<Corruption> found;
  for (size_t index = 0; index < written.size(); ++index) {
    const Segment& segment = state_.optimizer.digested_pieces()[index].segment;
    for (int part = 0; part < StateDigests::kParts; ++part) {
      const auto digest_of = [&](const auto& digests) { return digests[index].written[part]; };
      const std::optional<Digest> expected = majority_of(all, digest_of);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        const Digest own = digest_of(all[rank]);
        if (expected == own) continue;
        found.push_back(corruption_of(static_cast<CorruptData>(part), segment, expected ? static_cast<int>(rank) : -1,
                                      expected.value_or(own), own));
        if (!expected) break;
      }
    }
  }
  if (found.size() > kMostFindings) found.resize(kMostFindings);
  return found;
}

std::vector<Corruption> CorruptionCheck::at_rest() {
  std::vector<Corruption> all = updates();
  const std::vector<StateDigests> written = state_.optimizer.read_digests(), now = state_.optimizer.take_digests();
  std::vector<Corruption> mine;
  for (size_t index = 0; index < written.size(); ++index) {
    for (int part = 0; part < StateDigests::kParts; ++part) {
      const Digest &expected = written[index].written[part], &found = now[index].written[part];
      if (!now[index].checks(part) || expected == found) continue;
      mine.push_back(corruption_of(static_cast<CorruptData>(part), state_.optimizer.digested_pieces()[index].segment,
                                   state_.communicator.rank(), expected, found));
    }
  }
  const std::vector<Corruption> state = gather_findings(state_.communicator, std::move(mine));
  all.insert(all.end(), state.begin(), state.end());
  const std::vector<Corruption> weights = compare_weights(written);
  all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

std::string CorruptionCheck::unite(const std::vector<Corruption>& findings) {
  if (state_.reducer.config().sharding == Sharding::kSharded || state_.communicator.size() == 1) return "";
  const auto all = all_gather_arrays(state_.communicator, state_.optimizer.take_digests());
  const int me = state_.communicator.rank(), ranks = state_.communicator.size();
  // It has the majority's state where there is one: findings name the others.
  int source = 0;
  while (source < ranks && std::ranges::count(findings, source, &Corruption::rank) > 0) ++source;
  if (source == ranks) source = 0;
  std::set<int> differing;
  for (size_t index = 0; index < all[0].size(); ++index) {
    const auto differs = [&](int rank) {
      return !std::ranges::equal(all[static_cast<size_t>(rank)][index].written,
                                 all[static_cast<size_t>(source)][index].written);
    };
    bool any = false;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!differs(rank)) continue;
      differing.insert(rank);
      any = true;
    }
    if (any) take_over(index, source, differs(me));
  }
  if (differing.empty()) return "";
  state_.optimizer.recompute_weights();
  return fmt::format("rank{} {} take{} the optimizer state of rank {}", differing.size() == 1 ? "" : "s",
                     fmt::join(differing, ", "), differing.size() == 1 ? "s" : "", source);
}

void CorruptionCheck::take_over(size_t piece, int source, bool takes) {
  const bool gives = state_.communicator.rank() == source;
  for (const Tensor& part : state_.optimizer.digested_pieces()[piece].parts()) {
    if (!part.defined()) continue;
    std::vector<std::byte> mine(gives ? part.size_bytes() : 0);
    if (gives) state_.backend.download(part, mine.data(), state_.stream);
    const auto all = all_gather_varied(state_.communicator, mine);
    if (!takes) continue;
    state_.backend.upload(all[static_cast<size_t>(source)].data(), part, state_.stream);
    state_.stream.synchronize();  // it reads the bytes
  }
}

std::vector<Digest> CorruptionCheck::gradients() {
  std::vector<Tensor> gradients;
  const bool has_sums = state_.reducer.lanes().count() > 1;  // of lanes, which the last gradient alone would not show
  for (int index = 0; index < state_.parameters().size(); ++index) {
    const Parameter& parameter = state_.parameters()[index];
    if (!parameter.is_trainable) continue;
    for (const Tensor& part : has_sums ? state_.reducer.as_sent(parameter) : std::vector{parameter.gradient}) {
      gradients.push_back(part);
    }
  }
  return digests_of(gradients);
}

std::vector<Corruption> CorruptionCheck::differences(const std::vector<Digest>& before,
                                                     const std::vector<Digest>& now) {
  std::vector<Corruption> mine;
  const OwnLanes lanes = state_.reducer.lanes();
  const int64_t parts = lanes.count() > 1 ? count_nodes(lanes.begin, lanes.end) : 1;
  size_t own = 0;
  for (int i = 0; i < state_.parameters().size(); ++i) {
    const Parameter& parameter = state_.parameters()[i];
    for (int64_t part = 0; part < parts && parameter.is_trainable; ++part, ++own) {
      if (now[own] == before[own]) continue;
      mine.push_back(corruption_of(CorruptData::kGradient, {.parameter = i, .count = parameter.numel()},
                                   state_.communicator.rank(), before[own], now[own]));
    }
  }
  return gather_findings(state_.communicator, std::move(mine));
}

}  // namespace mantissa
