// One source of sequences: windows of its text, or its documents, packed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
  // DataError naming `options.what` if there is too little data for one sequence.
  DataSource(TokenRange range, DataSourceOptions options);

  int64_t sequences() const { return packed_ ? packed_->order.items() : windows_->windows(); }
  // Sequence number `sample` of a run that goes through the source again and again.
  void fill(uint64_t sample, const SequenceSpans& sequence) const;
  const TokenRange& range() const { return range_; }
  // Whether each position of each sequence has a target that counts.
  bool all_targets_counted() const { return !options_.masking && !packed_ && !range_.data->has_loss_mask(); }
  // "1200 training tokens in 40 windows", `kind` being "training token".
  std::string describe(const char* kind) const;

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

}  // namespace mantissa
