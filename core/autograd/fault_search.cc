#include "core/autograd/fault_search.h"

#include <bit>
#include <cmath>

namespace mantissa {

std::string to_text(const ValueRange& range) {
  std::string text = fmt::format("{} ({}, ", range.name, range.dtype);
  text += range.smallest == 0.0f ? std::string("no finite value but 0")
                                 : fmt::format("magnitudes {:.3g} to {:.3g}", range.smallest, range.largest);
  if (range.zeros > 0) text += fmt::format(", {} of {} zero", range.zeros, range.elements);
  if (range.non_finite > 0) text += fmt::format(", {} of {} NaN or Inf", range.non_finite, range.elements);
  return text + ")";
}

ValueRange FaultSearch::range_of(std::string name, const Tensor& tensor) {
  const Tensor record = backend_.make_record<ExponentHistogram>("magnitudes of an op's output");
  backend_.exponent_histogram({.x = tensor, .record = record}, stream_);
  ExponentHistogram histogram;
  backend_.download(record, &histogram, stream_);
  ValueRange range{.name = std::move(name),
                   .dtype = tensor.dtype(),
                   .largest = std::bit_cast<float>(histogram.amax),
                   .smallest = 0.0f,
                   .elements = tensor.numel(),
                   .zeros = histogram.counts[kZeroBin],
                   .non_finite = histogram.counts[kInfinityBin] + histogram.counts[kNanBin]};
  for (int bin = 0; bin < kFiniteBins && range.smallest == 0.0f; ++bin) {
    if (histogram.counts[bin] > 0) range.smallest = std::ldexp(1.0f, kMinExponent + bin / kBinsPerExponent);
  }
  return range;
}

void FaultSearch::examine(Op op, const std::string& layer, const Tensor& output, int slot,
                          const std::vector<int>& inputs, const std::vector<Parameter*>& parameters) {
  if (found_ || !is_floating(output.dtype())) return;
  const Tensor record = backend_.make_stats(stream_);
  backend_.tensor_stats({.x = output, .record = record}, stream_);
  const TensorStats stats = backend_.read_stats(record, stream_);
  if (stats.first_bad == TensorStats::kNone) {
    ranges_.emplace(slot, range_of(fmt::format("{} of '{}'", name(op), layer), output));
    return;
  }
  found_ = NonFiniteOp{std::string(name(op)), layer, stats, output.shape(), {}};
  for (const int input : inputs) {
    if (const auto range = ranges_.find(input); range != ranges_.end()) found_->inputs.push_back(range->second);
  }
  for (const Parameter* parameter : parameters) {
    found_->inputs.push_back(range_of(fmt::format("parameter '{}'", parameter->name), parameter->weight));
  }
}

}  // namespace mantissa
