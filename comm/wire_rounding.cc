#include "comm/wire_rounding.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/lane_tree.h"

namespace mantissa {
namespace {

// Other words than those of weights, moments and dropout, and others for each lane.
constexpr uint64_t kWireStream = 0x7c9f2b6e15d8a043u, kLaneStride = 0x9e3779b97f4a7c15u;

}  // namespace

WireRounding::WireRounding(const FlatBuckets& buckets, int rank, Backend& backend, const ReducerConfig& config,
                           float scale)
    : buckets_(buckets),
      backend_(backend),
      config_(config),
      scale_(scale),
      first_lane_(lane_begin(rank, buckets.layout().ranks(), buckets.layout().lanes())),
      last_lane_(lane_begin(rank + 1, buckets.layout().ranks(), buckets.layout().lanes())) {
  if (!config.keeps_residuals() || buckets.layout().lanes() == 1) return;
  applied_ = backend.make_tensor(DType::kI32, {1}, "number of updates");
  // As many on every rank as the largest number of lanes needs, so that a prediction of memory holds for all ranks.
  const int64_t lanes = buckets.layout().units_per_shard();
  for (const BucketLayout::Bucket& bucket : buckets.layout().buckets()) {
    residuals_.push_back(backend.make_tensor(DType::kF32, {2, lanes, bucket.numel}, "residuals of gradients"));
  }
}

void WireRounding::begin(const Tensor& step, const Tensor& unit) {
  MANTISSA_CHECK(unit.defined() || residuals_.empty(),
                 "[wire_rounding] error feedback needs the factor of the gradients, got none");
  if (!residuals_.empty()) unit_ = unit;
  MANTISSA_CHECK(step.defined() || config_.rounding == SenderRounding::kNearest,
                 "[wire_rounding] stochastic rounding needs the number of the step, got none");
  if (config_.rounding == SenderRounding::kStochastic) step_ = step;
}

void WireRounding::round(int bucket, int64_t lane, const Tensor& dst, Stream& stream) const {
  const BucketLayout::Bucket& layout = buckets_.layout().bucket(bucket);
  if (config_.rounding == SenderRounding::kNearest) {
    return round_part(bucket, {.count = layout.numel}, lane, dst, stream);
  }
  // Each parameter with the padding behind it: zeros, which any rounding keeps.
  int64_t end = layout.numel;
  for (auto segment = layout.segments.rbegin(); segment != layout.segments.rend(); ++segment) {
    Segment part = *segment;
    part.count = end - part.offset;
    end = part.offset;
    round_part(bucket, part, lane, dst, stream);
  }
}

void WireRounding::round_parameter(int parameter, int64_t lane, const Tensor& dst, Stream& stream) const {
  const int bucket = buckets_.layout().bucket_of(parameter);
  const int64_t begin = buckets_.layout().bucket(bucket).flat_begin;
  const int64_t offset = buckets_.layout().flat_index(parameter, 0) - begin;
  round_part(bucket, {.parameter = parameter, .count = dst.numel(), .offset = offset}, lane, dst, stream);
}

void WireRounding::round_part(int bucket, const Segment& part, int64_t lane, const Tensor& dst, Stream& stream) const {
  const Tensor src = buckets_.gradient(bucket).slice(part.offset, part.count);
  const bool is_whole = is_coded(dst.dtype()) || dst.numel() == part.count;
  const Tensor to = is_whole ? dst : dst.slice(part.offset, part.count);
  if (!config_.rounds_at_sender()) return backend_.run(CastArgs{.src = src, .dst = to, .scale = scale_}, stream);
  RoundContributionArgs args{.src = src,
                             .dst = to,
                             .wire = config_.wire,
                             .first = part.offset,
                             .scale = scale_,
                             .step = step_,
                             .key = (config_.seed ^ kWireStream) + static_cast<uint64_t>(lane) * kLaneStride,
                             .parameter = static_cast<uint32_t>(part.parameter),
                             .applied = applied_,
                             .unit = unit_};
  for (int which = 0; which < 2 && !residuals_.empty(); ++which) {
    args.residuals[static_cast<size_t>(which)] = residual(bucket, which, lane, part.offset, part.count);
  }
  backend_.run(args, stream);
}

Tensor WireRounding::residual(int bucket, int which, int64_t lane, int64_t offset, int64_t count) const {
  const Tensor& all = residuals_[static_cast<size_t>(bucket)];
  return all.slice((which * all.dim(1) + lane - first_lane_) * all.dim(2) + offset, count);
}

std::vector<LaneResidual> WireRounding::residuals(Stream& stream) const {
  std::vector<LaneResidual> found;
  if (residuals_.empty()) return found;
  int32_t applied = 0;
  if (backend_.computes()) backend_.download(applied_, &applied, stream);
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const Segment& segment : buckets_.layout().bucket(bucket).segments) {
      for (int64_t lane = first_lane_; lane < last_lane_; ++lane) {
        found.push_back({.parameter = &buckets_.parameters()[segment.parameter],
                         .lane = lane,
                         .values = residual(bucket, applied & 1, lane, segment.offset, segment.count)});
      }
    }
  }
  return found;
}

void WireRounding::clear_residuals(Stream& stream) const {
  for (const Tensor& residual : residuals_) backend_.fill(residual, 0.0f, stream);
}

size_t WireRounding::residual_bytes() const {
  size_t bytes = 0;
  for (const Tensor& residual : residuals_) bytes += residual.size_bytes();
  return bytes;
}

}  // namespace mantissa
