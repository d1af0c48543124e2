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

Offender VerdictReduction::find_offender(const Verdict& verdict, GradientReducer& reducer, const FlatBuckets& buckets) {
  MANTISSA_CHECK(!verdict.gradients_finite, "[find_offender] asked after a verdict with finite gradients");
  Offender mine;
  const ParameterSet& parameters = buckets.parameters();
  for (int index = 0; index < parameters.size() && mine.parameter < 0; ++index) {
    const TensorStats stats = stats_of(reducer.as_sent(parameters[index].gradient));
    if (stats.first_bad == TensorStats::kNone) continue;
    mine = {.parameter = index, .element = stats.first_bad, .rank = communicator_.rank()};
  }

  Offender first;
  for (const Offender& other : all_gather_records(communicator_, mine)) {
    if (other.parameter < 0) continue;
    const bool earlier = std::tie(other.parameter, other.element) < std::tie(first.parameter, first.element);
    if (first.parameter < 0 || earlier) first = other;
  }
  if (first.parameter >= 0) return first;
  const auto element = buckets.layout().locate(verdict.first_bad);
  MANTISSA_CHECK(element.has_value(), "[find_offender] padding at flat index {} is not finite", verdict.first_bad);
  return {.parameter = element->parameter, .element = element->element};
}

}  // namespace mantissa
