#include "comm/wire_rounding.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {
namespace {

// Other words than those of weights, moments and dropout, and others for each lane.
constexpr uint64_t kWireStream = 0x7c9f2b6e15d8a043u, kLaneStride = 0x9e3779b97f4a7c15u;

}  // namespace

void WireRounding::begin(const Tensor& step) {
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
  backend_.run(RoundContributionArgs{.src = src,
                                     .dst = to,
                                     .wire = config_.wire,
                                     .first = part.offset,
                                     .scale = scale_,
                                     .step = step_,
                                     .key = (config_.seed ^ kWireStream) + static_cast<uint64_t>(lane) * kLaneStride,
                                     .parameter = static_cast<uint32_t>(part.parameter)},
               stream);
}

}  // namespace mantissa
