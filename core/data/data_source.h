// One source of sequences: windows of its text, or its documents, packed.
#pragma once

#include <mutex>

#include "core/data/batch.h"

namespace mantissa {

struct DataSourceOptions {
  int64_t context = 0;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::kShuffled;
  bool packs_documents = false;
  std::optional<MaskingOptions> masking{};  // for models that predict masked tokens
  std::string what{};                       // "training data (data.train)"
};

class DataSource {
 public:
  // DataError naming `options.what` if there is too little data for one sequence, or no token counts as a target.
  DataSource(TokenRange range, DataSourceOptions options);

  int64_t sequences() const { return packed_ ? packed_->order.items() : windows_->windows(); }
  // Sequence number `sample` of a run that goes through the source again and again.
  void fill(uint64_t sample, const SequenceSpans& sequence) const;
  const TokenRange& range() const { return range_; }
  // Whether each position of each sequence has a target that counts.
  bool all_targets_counted() const { return !options_.masking && !packed_ && !range_.data->has_loss_mask(); }
  std::string describe(const char* kind) const;  // "1200 training tokens in 40 windows", `kind` being "training token"

 private:
  struct Packed {
    PackedDocuments documents;
    EpochOrder order;
    int64_t count;  // of documents
  };

  TokenRange range_;
  DataSourceOptions options_;
  std::optional<Sampler> windows_;
  std::optional<Packed> packed_;  // instead of windows
};

// Chooses the source of data for each sample, by the weights of the sources.
//
// Source: Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980). The next sample is of the source
// that would first be late, among the sources at least 1 / (2k - 2) samples below their share. After every number n of
// samples, each of k sources has had n * weight samples to within 1 - 1 / (2k - 2). All numbers are integers, so that
// every machine names the same source.
class Blend {
 public:
  explicit Blend(const std::vector<double>& weights);  // weights above 0, of any sum

  size_t sources() const { return parts_.size(); }
  // The source's weight, where all weights together are 1.
  double share(size_t source) const { return static_cast<double>(parts_[source]) / static_cast<double>(whole_); }

  struct Place {
    size_t source = 0;
    uint64_t index = 0;  // how many earlier samples were of this source
  };
  // The places of samples [first, first + out.size()). Takes some nanoseconds for every sample before them, once.
  void find(uint64_t first, std::span<Place> out) const;

 private:
  // Before some sample: how often each source has come, and by how much it is behind its share, in units of 1 / whole_.
  struct State {
    std::vector<uint64_t> counts;
    std::vector<int64_t> behind;
  };
  size_t next(State& state) const;

  std::vector<int64_t> parts_;  // weights; their sum is whole_
  int64_t whole_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<State> marks_;  // at every kMarkInterval samples, as far as anybody has asked
};

}  // namespace mantissa
