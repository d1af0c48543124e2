#include "tools/probe/run_probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/probe/args.h"
#include "core/kernels/reduction/args.h"

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
      losses_(backend, buckets.parameters().size(), "probe: losses of codes"),
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

void GradientProbe::measure() {
  summed_.clear(backend_, stream_);
  if (rounds()) {
    const DType wire = reducer_.config().wire;
    sent_.clear(backend_, stream_);
    losses_.clear(backend_, stream_);
    errors_.clear(backend_, stream_);
    for (int index = 0; index < buckets_.parameters().size(); ++index) {
      const Parameter& parameter = buckets_.parameters()[index];
      if (!parameter.is_trainable) continue;
      backend_.run(ExponentHistogramArgs{.x = parameter.gradient, .record = sent_[index]}, stream_);
      if (!is_coded(wire)) continue;
      backend_.run(RoundingLossesArgs{.src = parameter.gradient.view({1, parameter.numel()}),
                                      .format = {format_of(wire), Scaling::kMicro},
                                      .record = losses_[index]},
                   stream_);
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
          CompareArgs{
              .x = part, .reference = exact.slice(segment.offset, segment.count), .record = errors_[segment.parameter]},
          stream_);
    }
  }
}

std::vector<ProbeRow> GradientProbe::rows() {
  std::vector<ProbeRow> rows;
  const auto summed = summed_.read(backend_, stream_), sent = sent_.read(backend_, stream_);
  const auto losses = losses_.read(backend_, stream_);
  const auto errors = errors_.read(backend_, stream_);
  const DType wire = reducer_.config().wire;
  const float before = reducer_.plan().scale.before;
  for (int index = 0; index < buckets_.parameters().size(); ++index) {
    if (!buckets_.parameters()[index].is_trainable) continue;
    const auto i = static_cast<size_t>(index);
    ProbeRow row{.role = probe_role::kParameterGradient,
                 .tensor = buckets_.parameters()[index].name,
                 .format = std::string(name(DType::kF32))};
    row.histogram = summed[i];
    row.losses = format_losses(row.histogram, Format::kF32, 0);
    rows.push_back(row);
    if (!rounds()) continue;
    row.role = probe_role::kWire;
    row.format = is_coded(wire) ? name(TensorFormat{format_of(wire), Scaling::kMicro}) : std::string(name(wire));
    row.scale = before;
    row.histogram = sent[i];
    row.losses = is_coded(wire) ? losses[i]
                                : format_losses(row.histogram, format_of(wire), std::ilogb(before));  // a power of two
    row.error = errors[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

UpdateProbe::UpdateProbe(const ParameterSet& parameters, const ShardedOptimizer& optimizer, MasterWeights master,
                         Backend& backend, Stream& stream)
    : parameters_(parameters),
      master_(master),
      backend_(backend),
      stream_(stream),
      scratch_(backend, stream),
      histograms_(backend, parameters.size(), "probe: updates"),
      stagnation_(backend, parameters.size(), "probe: stagnation") {
  for (const StatePiece& piece : optimizer.pieces()) {
    if (!knows(*piece.parameter)) continue;
    const Tensor& weights = piece.master.defined() ? piece.master : piece.weight;
    const int64_t count = std::min(piece.count, kMaxElements);
    pieces_.push_back({.parameter = piece.parameter->index,
                       .weights = weights.slice(0, count),
                       .compensation = piece.compensation.defined() ? piece.compensation.slice(0, count) : Tensor(),
                       .before = backend.make_tensor(DType::kF32, {count}, "probe: weights before an update")});
  }
}

bool UpdateProbe::knows(const Parameter& parameter) const {
  return master_ != MasterWeights::kNoneStochastic || parameter.working_dtype == DType::kF32;
}

void UpdateProbe::read(const Piece& piece, const Tensor& out) {
  backend_.run(CastArgs{.src = piece.weights, .dst = out}, stream_);
  if (!piece.compensation.defined()) return;
  const Tensor compensation = scratch_.get(1, DType::kF32, out.shape());
  backend_.run(CastArgs{.src = piece.compensation, .dst = compensation}, stream_);
  backend_.run(AddArgs{.a = out, .b = compensation, .y = out}, stream_);
}

void UpdateProbe::before() {
  for (const Piece& piece : pieces_) read(piece, piece.before);
}

void UpdateProbe::after() {
  histograms_.clear(backend_, stream_);
  stagnation_.clear(backend_, stream_);
  for (const Piece& piece : pieces_) {
    const Shape& shape = piece.before.shape();
    const Tensor updated = scratch_.get(0, DType::kF32, shape);
    read(piece, updated);
    const Tensor delta = scratch_.get(1, DType::kF32, shape);
    backend_.run(
        UpdateStagnationArgs{.weight = piece.before, .updated = updated, .record = stagnation_[piece.parameter]},
        stream_);
    backend_.run(CastArgs{.src = piece.before, .dst = delta, .scale = -1.0f}, stream_);
    backend_.run(AddArgs{.a = updated, .b = delta, .y = delta}, stream_);
    backend_.run(ExponentHistogramArgs{.x = delta, .record = histograms_[piece.parameter]}, stream_);
  }
}

std::vector<ProbeRow> UpdateProbe::rows() {
  const auto histograms = histograms_.read(backend_, stream_);
  const auto stagnation = stagnation_.read(backend_, stream_);
  std::vector<ProbeRow> rows;
  for (int index = 0; index < parameters_.size(); ++index) {
    if (!parameters_[index].is_trainable || !knows(parameters_[index])) continue;
    const DType working = parameters_[index].working_dtype;
    ProbeRow row{.role = probe_role::kUpdate, .tensor = parameters_[index].name, .format = std::string(name(working))};
    row.histogram = histograms[static_cast<size_t>(index)];
    row.losses = format_losses(row.histogram, format_of(working), 0);
    row.stagnation = stagnation[static_cast<size_t>(index)];
    rows.push_back(std::move(row));
  }
  return rows;
}

size_t UpdateProbe::size_bytes() const {
  size_t bytes = scratch_.size_bytes();
  for (const Piece& piece : pieces_) bytes += piece.before.size_bytes();
  return bytes;
}

RunProbe::RunProbe(const Config& config, int linear_layers, ShardedState& state, DType reference)
    : config_(config.probe),
      communicator_(state.communicator),
      products_({.rows = config.probe.rows,
                 .context = config.model.context,
                 .max_layers = linear_layers,
                 .counts_weights = state.communicator.rank() == 0,
                 .reference = reference},
                state.backend, state.stream),
      gradients_(state.buckets, state.reducer, state.communicator, state.backend, state.stream),
      updates_(state.parameters(), state.optimizer, config.optimizer.adamw.master, state.backend, state.stream) {}

ProbedStep RunProbe::end(int64_t step, float loss_scale, bool applied, double learning_rate) {
  const auto begin = std::chrono::steady_clock::now();
  ProbedStep probed{.step = step, .loss_scale = loss_scale, .applied = applied, .rows = products_.rows()};
  const auto append = [&](std::vector<ProbeRow> rows) {
    std::move(rows.begin(), rows.end(), std::back_inserter(probed.rows));
  };
  append(gradients_.rows());
  if (applied && learning_rate > 0.0) append(updates_.rows());
  probed.rows = sum_over_ranks(communicator_, std::move(probed.rows));
  probed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return probed;
}

}  // namespace mantissa
