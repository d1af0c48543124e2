#include "tools/probe/gradient_probe.h"

#include "core/kernels/probe/args.h"

#include <algorithm>
#include <cmath>

namespace mantissa {

GradientProbe::GradientProbe(FlatBuckets& buckets, GradientReducer& reducer, Communicator& communicator,
                             Backend& backend, Stream& stream)
    : buckets_(buckets),
      reducer_(reducer),
      communicator_(communicator),
      backend_(backend),
      stream_(stream),
      summed_(backend, buckets.parameters().size(), "probe: summed gradients"),
      sent_(backend, buckets.parameters().size(), "probe: sent gradients"),
      errors_(backend, buckets.parameters().size(), "probe: errors of the sum") {
  if (!rounds()) return;
  int64_t largest = 0;
  for (const BucketLayout::Bucket& bucket : buckets.layout().buckets()) largest = std::max(largest, bucket.numel);
  received_ = backend.make_tensor(DType::kF32, {largest}, "probe: gradients of all ranks");
  exact_ = backend.make_tensor(DType::kF32, {largest / communicator.size()}, "probe: sum in fp32");
}

Tensor GradientProbe::exact_sum(int bucket) {
  const Tensor& mine = buckets_.gradient(bucket);
  const int64_t ranks = communicator_.size(), shard = mine.numel() / ranks;
  const Tensor all = received_.slice(0, mine.numel()).view({ranks, shard});
  communicator_.all_to_all(mine.view({ranks, shard}), all, stream_)->wait();
  Tensor sum = exact_.slice(0, shard);
  backend_.run(SumContributionsArgs{.contributions = all, .out = sum, .row_stride = shard}, stream_);
  return sum;
}

void GradientProbe::look() {
  summed_.clear(backend_, stream_);
  if (rounds()) {
    sent_.clear(backend_, stream_);
    errors_.clear(backend_, stream_);
    for (int index = 0; index < buckets_.parameters().size(); ++index) {
      backend_.run(ExponentHistogramArgs{.x = buckets_.parameters()[index].gradient, .record = sent_[index]}, stream_);
    }
  }
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const Tensor sum = reducer_.result_shard(bucket);
    const Tensor exact = rounds() ? exact_sum(bucket) : Tensor();
    for (const Segment& segment : buckets_.layout().shard_segments(bucket, communicator_.rank())) {
      const Tensor part = sum.slice(segment.offset, segment.count);
      backend_.run(ExponentHistogramArgs{.x = part, .record = summed_[segment.parameter]}, stream_);
      if (!exact.defined()) continue;
      backend_.run(
          CompareArgs{.x = part, .reference = exact.slice(segment.offset, segment.count), .record = errors_[segment.parameter]},
          stream_);
    }
  }
}

std::vector<ProbeRow> GradientProbe::rows() {
  std::vector<ProbeRow> rows;
  const auto summed = summed_.read(backend_, stream_), sent = sent_.read(backend_, stream_);
  const auto errors = errors_.read(backend_, stream_);
  const DType wire = reducer_.config().wire;
  const float before = reducer_.plan().scale.before;
  for (int index = 0; index < buckets_.parameters().size(); ++index) {
    const auto i = static_cast<size_t>(index);
    ProbeRow row{.role = probe_role::kParameterGradient,
                 .tensor = buckets_.parameters()[index].name,
                 .format = std::string(name(DType::kF32))};
    row.histogram = summed[i];
    row.losses = format_losses(row.histogram, Format::kF32, 0);
    rows.push_back(row);
    if (!rounds()) continue;
    row.role = probe_role::kWire;
    row.format = name(wire);
    row.scale = before;
    row.histogram = sent[i];
    row.losses = format_losses(row.histogram, format_of(wire), std::ilogb(before));  // a power of two
    row.error = errors[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace mantissa
