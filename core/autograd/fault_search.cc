#include "core/autograd/fault_search.h"

#include <cmath>

#include "core/kernels/probe/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa {

std::string to_text(const ValueRange& range) {
  std::string text = fmt::format("{} ({}, ", range.name, range.dtype);
  text += range.smallest == 0.0f ? std::string("no finite value but 0")
                                 : fmt::format("magnitudes {:.3g} to {:.3g}", range.smallest, range.largest);
  if (range.zeros > 0) text += fmt::format(", {} of {} zero", range.zeros, range.elements);
  if (range.non_finite > 0) text += fmt::format(", {} of {} NaN or Inf", range.non_finite, range.elements);
  return text + ")";
}

namespace {

std::string kind_of(const SearchedOp& op) {
  return op.number == 1 ? std::string(name(op.op)) : fmt::format("{} (number {})", name(op.op), op.number);
}

std::string place_of(const SearchedOp& op) {
  return op.layer.empty() ? fmt::format("{} of the model", kind_of(op))
                          : fmt::format("{} of '{}'", kind_of(op), op.layer);
}

// Other ops compute in the dtype of their inputs, or in fp32.
bool has_own_dtype(Op op) { return op == Op::kLinear || op == Op::kAttention; }

}  // namespace

ValueRange FaultSearch::range_of(std::string name, const Tensor& tensor) {
  const Tensor record = backend_.make_record<ExponentHistogram>("magnitudes of an op's output");
  backend_.run(ExponentHistogramArgs{.x = tensor, .record = record}, stream_);
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

std::optional<NonFiniteOp> FaultSearch::judge(const SearchedOp& op, const Tensor& made) {
  const Tensor record = backend_.make_stats(stream_);
  backend_.run(TensorStatsArgs{.x = made, .record = record}, stream_);
  const TensorStats stats = backend_.read_stats(record, stream_);
  if (stats.first_bad == TensorStats::kNone) return std::nullopt;
  return NonFiniteOp{.pass = Pass::kForward,
                     .op = kind_of(op),
                     .layer = op.layer,
                     .made = "its output",
                     .stats = stats,
                     .shape = made.shape(),
                     .inputs = inputs_of(op)};
}

std::vector<ValueRange> FaultSearch::inputs_of(const SearchedOp& op) {
  std::vector<ValueRange> inputs;
  for (const int input : op.inputs) {
    if (const auto range = ranges_.find(input); range != ranges_.end()) inputs.push_back(range->second);
  }
  for (const Parameter* parameter : op.parameters) {
    const Tensor weight = weights_.cast(*parameter, parameter->working_dtype, stream_);
    inputs.push_back(range_of(fmt::format("parameter '{}'", parameter->name), weight));
  }
  return inputs;
}

std::vector<std::string> FaultSearch::stored_by(const SearchedOp& op, const std::vector<int>& inputs) const {
  if (has_own_dtype(op.op)) return {op.layer};
  std::vector<std::string> layers;
  for (const int input : inputs) {
    if (const auto layer = lowered_.find(input); layer != lowered_.end()) layers.push_back(layer->second);
  }
  return layers;
}

void FaultSearch::examine(const SearchedOp& op, const Tensor& output) {
  if (found_ || !is_floating(output.dtype())) return;
  found_ = judge(op, output);
  if (found_) {
    found_->stored_by = stored_by(op, op.inputs);
  } else {
    remember(op, output);
  }
}

void FaultSearch::remember(const SearchedOp& op, const Tensor& output) {
  if (found_ || op.slot < 0 || !is_floating(output.dtype())) return;
  if (has_own_dtype(op.op)) lowered_.emplace(op.slot, op.layer);
  ranges_.emplace(op.slot, range_of(place_of(op), output));
}

void FaultSearch::enter_backward(const SearchedOp& op, const Tensor& d_out) {
  if (found_) return;
  incoming_ = range_of("gradient of " + place_of(op), d_out);
}

void FaultSearch::examine_gradients(const SearchedOp& op, const std::function<const Tensor&(int slot)>& gradient_of) {
  const auto check = [&](const std::string& of, const Tensor& gradient, const std::vector<int>& inputs) {
    if (found_ || !gradient.defined()) return;
    found_ = judge(op, gradient);
    if (!found_) return;
    found_->pass = Pass::kBackward;
    found_->made = fmt::format("the gradient of {}", of);
    found_->incoming = incoming_;
    found_->stored_by = stored_by(op, inputs);
  };
  for (const int input : op.inputs) {
    const auto range = ranges_.find(input);
    if (input >= 0) check(range != ranges_.end() ? range->second.name : "an input", gradient_of(input), {input});
  }
  for (const Parameter* parameter : op.parameters) {
    if (parameter->gradient_written) check(fmt::format("parameter '{}'", parameter->name), parameter->gradient, {});
  }
}

}  // namespace mantissa
