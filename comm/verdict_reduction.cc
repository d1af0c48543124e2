#include "comm/verdict_reduction.h"

#include "core/kernels/optimizer/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa {
namespace {

constexpr int64_t kRecordBytes = sizeof(VerdictRecord);

// Device records: mine (n) of each rank to all (N, n).
void gather_records(const Tensor& mine, const Tensor& all, Communicator& communicator, Backend& backend,
                    Stream& stream) {
  if (communicator.size() > 1) {
    communicator.all_gather(mine, all, stream)->wait();
  } else {
    backend.copy(mine, all, stream);  // with a transport through host memory the host would have to wait
  }
}

}  // namespace

VerdictReduction::VerdictReduction(const ExchangeGroups& groups, Backend& backend, Stream& stream)
    : groups_(groups),
      communicator_(groups.all()),
      backend_(backend),
      stream_(stream),
      plan_(backend.make_record<UpdatePlan>("update plan")),
      hold_(backend.make_tensor(DType::kI32, {1}, "update hold")),
      control_(backend.make_record<UpdateControl>("update control")),
      decision_(backend.make_record<UpdateDecision>("update decision")),
      scratch_stats_(backend.make_stats(stream)) {
  for (const ExchangeGroups::Stage& stage : groups.stages()) {
    mine_.push_back(backend.make_record<VerdictRecord>("verdict record"));
    gathered_.push_back(backend.make_tensor(DType::kU8, {stage.members, kRecordBytes}, "verdict records"));
  }
}

void VerdictReduction::decide(const Tensor& losses, const GradientReducer& reducer, const Tensor& state_faults) {
  backend_.run(RecordVerdictArgs{.losses = losses,
                                 .stats = reducer.stats(),
                                 .plan = plan_,
                                 .record = mine_[0],
                                 .state_faults = state_faults,
                                 .rank = communicator_.rank()},
               stream_);
  for (size_t stage = 0; stage < mine_.size(); ++stage) {
    gather_records(mine_[stage], gathered_[stage], *groups_.stages()[stage].group, backend_, stream_);
    if (stage + 1 == mine_.size()) break;
    backend_.run(FoldVerdictsArgs{.records = gathered_[stage], .record = mine_[stage + 1]}, stream_);
  }
  backend_.run(DecideUpdateArgs{.records = gathered_.back(),
                                .plan = plan_,
                                .hold = hold_,
                                .control = control_,
                                .decision = decision_,
                                .applied = reducer.applied()},
               stream_);
}

UpdateDecision VerdictReduction::read_decision() {
  UpdateDecision decision;
  backend_.download(decision_, &decision, stream_);
  return decision;
}

TensorStats VerdictReduction::stats_of(const Tensor& values) {
  const TensorStats empty;
  backend_.upload(&empty, scratch_stats_, stream_);
  backend_.run(TensorStatsArgs{.x = values, .record = scratch_stats_}, stream_);
  return backend_.read_stats(scratch_stats_, stream_);
}

bool VerdictReduction::holds_nan_sum(int64_t flat_index, const GradientReducer& reducer, const BucketLayout& layout) {
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    const int64_t begin = layout.shard_begin(static_cast<int>(index), communicator_.rank());
    const int64_t offset = flat_index - bucket.flat_begin - begin;
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
    if (!parameters[index].is_trainable) continue;
    for (const Tensor& sent : reducer.as_sent(parameters[index])) {
      const TensorStats stats = stats_of(sent);
      const bool is_first = mine.own.parameter < 0 || stats.first_bad < mine.own.element;
      if (stats.first_bad == TensorStats::kNone || !is_first) continue;
      const Tensor element = sent.slice(stats.first_bad, 1);
      mine.own = {.parameter = index,
                  .element = stats.first_bad,
                  .rank = communicator_.rank(),
                  .is_nan = stats_of(element).nan_count > 0};
    }
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

AmaxExchange::AmaxExchange(DelayedScales& scales, Communicator& communicator, Backend& backend, Stream& stream)
    : scales_(scales), communicator_(communicator), backend_(backend), stream_(stream) {
  if (scales.empty()) return;
  gathered_ = backend.make_tensor(DType::kU8, {communicator.size(), scales.records().numel()}, "amaxes of all ranks");
}

void AmaxExchange::run(const Tensor& decision) {
  if (scales_.empty()) return;
  gather_records(scales_.records(), gathered_, communicator_, backend_, stream_);
  scales_.advance(gathered_, decision);
}

}  // namespace mantissa
