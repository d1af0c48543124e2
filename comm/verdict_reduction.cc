#include "comm/verdict_reduction.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace mantissa {

Verdict fold_verdict(std::span<const VerdictRecord> records) {
  Verdict verdict;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const auto& [loss, stats] = records[rank];
    verdict.loss_sum += loss.sum;
    verdict.tokens += loss.tokens;
    if (!std::isfinite(loss.sum) && verdict.loss_finite) {
      verdict.loss_finite = false;
      verdict.loss_rank = static_cast<int32_t>(rank);
    }
    verdict.gradients_finite &= stats.nan_count == 0 && stats.inf_count == 0;
    verdict.found_nan |= stats.nan_count > 0;
    verdict.first_bad = std::min(verdict.first_bad, stats.first_bad);
    verdict.sum_squares += stats.sum_squares;
  }
  return verdict;
}

VerdictReduction::VerdictReduction(Communicator& communicator, Backend& backend, Stream& stream)
    : communicator_(communicator), backend_(backend), stream_(stream), record_(backend.make_stats(stream)) {}

Verdict VerdictReduction::reduce(const LocalLoss& loss, const GradientReducer& reducer, const BucketLayout& layout) {
  const TensorStats empty;
  backend_.upload(&empty, record_, stream_);
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    backend_.tensor_stats({.x = reducer.result_shard(static_cast<int>(index)),
                           .record = record_,
                           .index_offset = bucket.flat_begin + communicator_.rank() * bucket.shard_numel},
                          stream_);
  }
  const VerdictRecord mine{loss, backend_.read_stats(record_, stream_)};
  return fold_verdict(all_gather_records(communicator_, mine));
}

TensorStats VerdictReduction::stats_of(const Tensor& values) {
  const TensorStats empty;
  backend_.upload(&empty, record_, stream_);
  backend_.tensor_stats({.x = values, .record = record_}, stream_);
  return backend_.read_stats(record_, stream_);
}

bool VerdictReduction::holds_nan_sum(int64_t flat_index, const GradientReducer& reducer, const BucketLayout& layout) {
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    const int64_t offset = flat_index - bucket.flat_begin - communicator_.rank() * bucket.shard_numel;
    if (offset < 0 || offset >= bucket.shard_numel) continue;
    return stats_of(reducer.result_shard(static_cast<int>(index)).slice(offset, 1)).nan_count > 0;
  }
  return false;
}

Offender VerdictReduction::find_offender(const Verdict& verdict, GradientReducer& reducer, const FlatBuckets& buckets) {
  MANTISSA_CHECK(!verdict.gradients_finite, "[find_offender] asked after a verdict with finite gradients");
  struct Record {
    Offender own;
    bool sum_is_nan = false;
  };
  Record mine{.own = {}, .sum_is_nan = holds_nan_sum(verdict.first_bad, reducer, buckets.layout())};
  const ParameterSet& parameters = buckets.parameters();
  for (int index = 0; index < parameters.size() && mine.own.parameter < 0; ++index) {
    const Tensor sent = reducer.as_sent(parameters[index].gradient);
    const TensorStats stats = stats_of(sent);
    if (stats.first_bad == TensorStats::kNone) continue;
    const Tensor element = sent.slice(stats.first_bad, 1);
    mine.own = {.parameter = index,
                .element = stats.first_bad,
                .rank = communicator_.rank(),
                .is_nan = stats_of(element).nan_count > 0};
  }

  Offender first;
  bool sum_is_nan = false;
  for (const auto& [other, other_sum_is_nan] : all_gather_records(communicator_, mine)) {
    sum_is_nan |= other_sum_is_nan;
    if (other.parameter < 0) continue;
    const bool earlier = std::tie(other.parameter, other.element) < std::tie(first.parameter, first.element);
    if (first.parameter < 0 || earlier) first = other;
  }
  if (first.parameter >= 0) return first;
  const auto element = buckets.layout().locate(verdict.first_bad);
  MANTISSA_CHECK(element.has_value(), "[find_offender] padding at flat index {} is not finite", verdict.first_bad);
  return {.parameter = element->parameter, .element = element->element, .is_nan = sum_is_nan};
}

}  // namespace mantissa
