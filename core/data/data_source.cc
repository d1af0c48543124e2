#include "core/data/data_source.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"

namespace mantissa {

DataSource::DataSource(TokenRange range, DataSourceOptions options)
    : range_(std::move(range)), options_(std::move(options)) {
  require<DataError>(!options_.masking || !range_.data->has_loss_mask(),
                     "the {} has loss masks, which belong to models that predict the next token", options_.what);
  if (!options_.packs_documents) {
    windows_.emplace(range_.size(), options_.context, options_.seed, options_.order, options_.what.c_str());
    return;
  }
  const std::vector<int64_t> starts = range_.documents();
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

}  // namespace mantissa
