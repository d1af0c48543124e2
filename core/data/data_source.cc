#include "core/data/data_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

constexpr uint64_t kMarkInterval = 1 << 14;
constexpr double kParts = 0x1p40;  // rounding a weight to so many parts moves a source by less than one sample in 10^11

// Whether a token counts as a target, beside the first of each document. `documents` ascend.
bool has_target(const TokenRange& range, std::span<const int64_t> documents) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::vector<uint8_t> counts;
  for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
    counts.resize(static_cast<size_t>(std::min(kBlock, range.end - begin)));
    range.data->read_loss_mask(begin, counts);
    for (auto start = std::ranges::lower_bound(documents, begin);
         start != documents.end() && *start < begin + std::ssize(counts); ++start) {
      counts[static_cast<size_t>(*start - begin)] = 0;
    }
    if (std::ranges::any_of(counts, [](uint8_t count) { return count != 0; })) return true;
  }
  return false;
}

}  // namespace

DataSource::DataSource(TokenRange range, DataSourceOptions options)
    : range_(std::move(range)), options_(std::move(options)) {
  require<DataError>(!options_.masking || !range_.data->has_loss_mask(),
                     "the {} has loss masks, which belong to models that predict the next token", options_.what);
  const std::vector<int64_t> starts =
      options_.packs_documents ? range_.documents() : std::vector<int64_t>{range_.begin};
  require<DataError>(!range_.data->has_loss_mask() || has_target(range_, starts),
                     "the {} has no target: loss_mask is 0 for each token but the first of a document; expected at "
                     "least one 1, as `mantissa tokenize --chat` writes for an assistant's answers",
                     options_.what);
  if (!options_.packs_documents) {
    windows_.emplace(range_.size(), options_.context, options_.seed, options_.order, options_.what.c_str());
    return;
  }
  PackedDocuments documents(starts, range_.end, options_.context, options_.seed, options_.order);
  require<DataError>(documents.sequences() > 0, "the {} has {}, and none of two tokens or more", options_.what,
                     counted(std::ssize(starts), "document"));
  const EpochOrder order(documents.sequences(), options_.seed, options_.order);
  packed_.emplace(Packed{std::move(documents), order, std::ssize(starts)});
}

void DataSource::fill(uint64_t sample, const SequenceSpans& sequence) const {
  if (packed_) {
    fill_packed_batch(range_, packed_->documents, packed_->order, sample, options_.context, sequence);
  } else if (options_.masking) {
    fill_masked_batch(range_, *windows_, sample, options_.context, *options_.masking, sequence.tokens,
                      sequence.targets);
  } else {
    fill_next_token_batch(range_, *windows_, sample, options_.context, sequence.tokens, sequence.targets);
  }
}

std::string DataSource::describe(const char* kind) const {
  const std::string tokens = counted(range_.size(), kind);
  if (!packed_) return fmt::format("{} in {}", tokens, counted(sequences(), "window"));
  return fmt::format("{} of {} in {} ({:.1f} % padding)", tokens, counted(packed_->count, "document"),
                     counted(sequences(), "packed sequence"), 100.0 * packed_->documents.padding());
}

Blend::Blend(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    MANTISSA_CHECK(weight > 0.0 && std::isfinite(sum), "[blend] weights must be > 0, got {} of {}", weight, sum);
    parts_.push_back(std::max<int64_t>(std::llround(weight / sum * kParts), 1));
  }
  whole_ = std::accumulate(parts_.begin(), parts_.end(), int64_t{0});
  marks_.push_back({std::vector<uint64_t>(sources(), 0), std::vector<int64_t>(sources(), 0)});
}

size_t Blend::next(State& state) const {
  // A source has w parts of the whole W, and came c times before sample n; there are k sources.
  // behind = n * w - c * W. It may come once behind >= W / (2k - 2). It must come before behind > W - W / (2k - 2).
  // The rest until then, divided by w, is the wait: the smallest comes next. All is multiplied by 2k - 2.
  const auto factor = static_cast<__int128>(std::max<size_t>(2 * sources(), 3) - 2);
  size_t best = sources();
  __int128 best_left = 0;
  for (size_t source = 0; source < sources(); ++source) {
    const __int128 behind = factor * (state.behind[source] += parts_[source]);
    if (behind < whole_) continue;
    const __int128 left = (factor - 1) * whole_ - behind;
    if (best == sources() || left * parts_[best] < best_left * parts_[source]) {
      best = source;
      best_left = left;
    }
  }
  MANTISSA_CHECK(best < sources(), "[blend] no source is behind its share");
  state.behind[best] -= whole_;
  ++state.counts[best];
  return best;
}

void Blend::find(uint64_t first, std::span<Place> out) const {
  const uint64_t mark = first / kMarkInterval;
  State state;
  {
    const std::lock_guard lock(mutex_);
    while (marks_.size() <= mark) {
      State further = marks_.back();
      for (uint64_t i = 0; i < kMarkInterval; ++i) next(further);
      marks_.push_back(std::move(further));
    }
    state = marks_[mark];
  }
  for (uint64_t i = mark * kMarkInterval; i < first; ++i) next(state);
  for (Place& place : out) {
    place.source = next(state);
    place.index = state.counts[place.source] - 1;
  }
}

}  // namespace mantissa
