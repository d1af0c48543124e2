#include "core/data/packing.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "core/data/batch.h"

namespace mantissa {
namespace {

constexpr uint64_t kPackingDomain = 0x7061636b696e6721;  // "packing!", keeps this use of the run's seed apart

// Bins of equal size; each element goes into the first bin with room. Tree nodes hold the largest room below them.
class FirstFit {
 public:
  FirstFit(int64_t bins, int64_t size)
      : leaves_(std::bit_ceil(static_cast<uint64_t>(bins))), room_(2 * leaves_, static_cast<int32_t>(size)) {}

  // The bin that takes an element of this size.
  int64_t put(int64_t size) {
    uint64_t node = 1;
    while (node < leaves_) {
      node *= 2;
      if (room_[node] < size) ++node;
    }
    const uint64_t bin = node - leaves_;
    room_[node] -= static_cast<int32_t>(size);
    while (node > 1) {
      node /= 2;
      const int32_t room = std::max(room_[2 * node], room_[2 * node + 1]);
      if (room_[node] == room) break;
      room_[node] = room;
    }
    return static_cast<int64_t>(bin);
  }

 private:
  const uint64_t leaves_;
  std::vector<int32_t> room_;  // node i has the children 2i and 2i + 1
};

}  // namespace

PackedDocuments::PackedDocuments(std::span<const int64_t> documents, int64_t end, int64_t context, uint64_t seed,
                                 SampleOrder order)
    : context_(context) {
  MANTISSA_CHECK(context > 0 && context <= INT32_MAX, "[packing] context must be in [1, 2^31), got {}", context);
  const auto count = static_cast<uint64_t>(documents.size());
  const auto end_of = [&](uint64_t document) { return document + 1 < count ? documents[document + 1] : end; };
  for (uint64_t document = 0; document < count; ++document) {
    const int64_t tokens = end_of(document) - documents[document];
    MANTISSA_CHECK(tokens > 0, "[packing] document {} has {} tokens", document, tokens);
    positions_ += tokens - 1;
  }
  // Two sequences in a row hold together more than one does, or the second one's first piece would be in the first.
  FirstFit bins(2 * positions_ / context + 2, context);
  std::vector<Piece> placed;
  std::vector<int64_t> sequence_of;
  const uint64_t key = seed ^ kPackingDomain;
  for (uint64_t place = 0; place < count; ++place) {
    const uint64_t document = order == SampleOrder::kShuffled ? permute(place, count, key, 0) : place;
    const int64_t last = end_of(document) - 1;  // is a target only
    for (int64_t begin = documents[document]; begin < last; begin += context) {
      placed.push_back({.begin = begin, .positions = std::min(context, last - begin)});
      sequence_of.push_back(bins.put(placed.back().positions));
    }
  }
  const int64_t sequences = sequence_of.empty() ? 0 : std::ranges::max(sequence_of) + 1;
  // Sorts the pieces by sequence, in the order in which they were put there.
  first_piece_.assign(static_cast<size_t>(sequences) + 1, 0);
  for (const int64_t sequence : sequence_of) ++first_piece_[static_cast<size_t>(sequence) + 1];
  for (size_t i = 1; i < first_piece_.size(); ++i) first_piece_[i] += first_piece_[i - 1];
  std::vector<int64_t> next(first_piece_);
  pieces_.resize(placed.size());
  for (size_t i = 0; i < placed.size(); ++i) {
    pieces_[static_cast<size_t>(next[static_cast<size_t>(sequence_of[i])]++)] = placed[i];
  }
}

double PackedDocuments::padding() const {
  const double all = static_cast<double>(sequences()) * static_cast<double>(context_);
  return all > 0.0 ? 1.0 - static_cast<double>(positions_) / all : 0.0;
}

std::span<const PackedDocuments::Piece> PackedDocuments::pieces(int64_t sequence) const {
  const int64_t first = first_piece_[static_cast<size_t>(sequence)];
  return std::span(pieces_).subspan(static_cast<size_t>(first),
                                    static_cast<size_t>(first_piece_[static_cast<size_t>(sequence) + 1] - first));
}

}  // namespace mantissa
