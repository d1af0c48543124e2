#include "core/data/batch.h"

#include <bit>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"
#include "core/tensor/philox.h"

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

// Separate these uses of the run's seed from dropout's and initialisation's.
constexpr uint64_t kMaskDomain = 0x6d61736b696e6721;     // "masking!"
constexpr uint64_t kSamplerDomain = 0x73616d706c657221;  // "sampler!"
constexpr uint32_t kShiftCounter = 0xffffffffu;          // not the number of a round
// Four rounds turn a pseudorandom function into a pseudorandom permutation (Luby & Rackoff 1988); two more are free.
constexpr uint32_t kRounds = 6;

uint32_t round_function(uint64_t key, uint64_t epoch, uint32_t round, uint32_t half) {
  return philox(key, {half, round, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)})[0];
}

// Calls visit(row, window) with the context + 1 tokens of each sample.
template <typename Visit>
void for_each_window(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                     std::span<int32_t> tokens, std::span<int32_t> targets, Visit visit) {
  MANTISSA_CHECK(context > 0 && tokens.size() % static_cast<size_t>(context) == 0 && targets.size() == tokens.size(),
                 "[batch] tokens and targets must hold whole sequences of {}, got {} and {}", context, tokens.size(),
                 targets.size());
  std::vector<int32_t> window(static_cast<size_t>(context) + 1);
  const size_t rows = tokens.size() / static_cast<size_t>(context);
  for (size_t row = 0; row < rows; ++row) {
    range.data->read(range.begin + sampler.window_begin(first_sample + row), window);
    visit(row, std::span<const int32_t>(window));
  }
}

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

uint64_t permute(uint64_t index, uint64_t size, uint64_t key, uint64_t epoch) {
  MANTISSA_CHECK(index < size && size <= uint64_t{1} << 62, "[permute] index {} is outside of [0, {})", index, size);
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (round_function(key, epoch, round, static_cast<uint32_t>(right)) & mask);
      left = right;
      right = mixed;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

EpochOrder::EpochOrder(int64_t items, uint64_t seed, SampleOrder order)
    : items_(static_cast<uint64_t>(items)), key_(seed ^ kSamplerDomain), order_(order) {
  MANTISSA_CHECK(items > 0, "[epoch_order] expected items, got {}", items);
}

int64_t EpochOrder::item(uint64_t sample) const {
  const uint64_t epoch = sample / items_, position = sample % items_;
  return static_cast<int64_t>(order_ == SampleOrder::kSequential ? position : permute(position, items_, key_, epoch));
}

namespace {

int64_t windows_of(int64_t tokens, int64_t context, const char* what) {
  MANTISSA_CHECK(context > 0, "[sampler] context must be > 0, got {}", context);
  require<DataError>(tokens > context,
                     "the {} has {}, one window needs {} (model.context {} and the token after it); give more data "
                     "or lower model.context",
                     what, counted(tokens, "token"), context + 1, context);
  return (tokens - 1) / context;
}

// Ignores the targets that do not count; they begin with token `begin`.
void mask_targets(const TokenData& data, int64_t begin, std::span<int32_t> targets) {
  if (!data.has_loss_mask()) return;
  std::vector<uint8_t> loss_mask(targets.size());
  data.read_loss_mask(begin, loss_mask);
  for (size_t i = 0; i < loss_mask.size(); ++i) {
    if (loss_mask[i] == 0) targets[i] = kIgnoredTarget;
  }
}

}  // namespace

Sampler::Sampler(int64_t tokens, int64_t context, uint64_t seed, SampleOrder order, const char* what)
    : order_(windows_of(tokens, context, what), seed, order),
      context_(context),
      slack_((tokens - 1) % context),
      key_(seed ^ kSamplerDomain),
      is_shifted_(order == SampleOrder::kShuffled) {}

int64_t Sampler::window_begin(uint64_t sample) const {
  const int64_t begin = order_.item(sample) * context_;
  if (!is_shifted_) return begin;
  const uint64_t epoch = sample / static_cast<uint64_t>(windows());
  const uint64_t shift = round_function(key_, epoch, kShiftCounter, 0) % (static_cast<uint64_t>(slack_) + 1);
  return begin + static_cast<int64_t>(shift);
}

void fill_next_token_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                           std::span<int32_t> tokens, std::span<int32_t> targets) {
  for_each_window(range, sampler, first_sample, context, tokens, targets,
                  [&](size_t row, std::span<const int32_t> window) {
                    const size_t at = row * static_cast<size_t>(context);
                    std::copy(window.begin(), window.end() - 1, tokens.begin() + static_cast<ptrdiff_t>(at));
                    std::copy(window.begin() + 1, window.end(), targets.begin() + static_cast<ptrdiff_t>(at));
                    mask_targets(*range.data, range.begin + sampler.window_begin(first_sample + row) + 1,
                                 targets.subspan(at, static_cast<size_t>(context)));
                  });
}

void fill_packed_batch(const TokenRange& range, const PackedDocuments& packed, const EpochOrder& order,
                       uint64_t first_sample, int64_t context, const SequenceSpans& out) {
  const auto length = static_cast<size_t>(context);
  MANTISSA_CHECK(out.tokens.size() % length == 0 && out.targets.size() == out.tokens.size() &&
                     out.starts.size() == out.tokens.size(),
                 "[batch] tokens, targets and starts must hold whole sequences of {}, got {}, {} and {}", context,
                 out.tokens.size(), out.targets.size(), out.starts.size());
  std::vector<int32_t> piece_tokens;
  for (size_t row = 0; row < out.tokens.size() / length; ++row) {
    const auto tokens = out.tokens.subspan(row * length, length), targets = out.targets.subspan(row * length, length),
               starts = out.starts.subspan(row * length, length);
    size_t at = 0;
    for (const PackedDocuments::Piece& piece : packed.pieces(order.item(first_sample + row))) {
      const auto count = static_cast<size_t>(piece.positions);
      piece_tokens.resize(count + 1);
      range.data->read(piece.begin, piece_tokens);
      std::copy_n(piece_tokens.begin(), count, tokens.subspan(at).begin());
      std::copy_n(piece_tokens.begin() + 1, count, targets.subspan(at).begin());
      std::ranges::fill(starts.subspan(at, count), static_cast<int32_t>(at));
      mask_targets(*range.data, piece.begin + 1, targets.subspan(at, count));
      at += count;
    }
    std::ranges::fill(tokens.subspan(at), 0);
    std::ranges::fill(targets.subspan(at), kIgnoredTarget);
    std::ranges::fill(starts.subspan(at), static_cast<int32_t>(at));
  }
}

void fill_masked_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                       const MaskingOptions& options, std::span<int32_t> tokens, std::span<int32_t> targets) {
  MANTISSA_CHECK(options.fraction > 0.0 && options.fraction <= 1.0, "[batch] mask fraction must be in (0, 1], got {}",
                 options.fraction);
  const uint64_t key = options.seed ^ kMaskDomain;
  for_each_window(
      range, sampler, first_sample, context, tokens, targets, [&](size_t row, std::span<const int32_t> window) {
        const uint64_t sample = first_sample + row;
        const auto words = [&](uint32_t position) {
          return philox(key, {position, 0, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
        };
        const uint32_t always = words(UINT32_MAX)[0] % static_cast<uint32_t>(context);
        for (uint32_t t = 0; t < static_cast<uint32_t>(context); ++t) {
          const PhiloxCounter random = words(t);
          const size_t at = row * static_cast<size_t>(context) + t;
          const bool chosen = t == always || uniform01(random[0]) < options.fraction;
          const float how = uniform01(random[1]);
          targets[at] = chosen ? window[t] : kIgnoredTarget;
          tokens[at] = !chosen || how >= 0.9f ? window[t]
                       : how < 0.8f           ? options.mask_token
                                              : static_cast<int32_t>(random[2] % static_cast<uint32_t>(options.vocab));
        }
      });
}

}  // namespace mantissa
