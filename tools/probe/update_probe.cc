#include "tools/probe/update_probe.h"

#include <algorithm>

namespace mantissa {

UpdateProbe::UpdateProbe(const ParameterSet& parameters, const ShardedOptimizer& optimizer, Backend& backend,
                         Stream& stream)
    : parameters_(parameters),
      backend_(backend),
      stream_(stream),
      scratch_(backend, stream),
      histograms_(backend, parameters.size(), "probe: updates"),
      stagnation_(backend, parameters.size(), "probe: stagnation") {
  for (const StatePiece& piece : optimizer.pieces()) {
    const Tensor& weights = piece.master.defined() ? piece.master : piece.weight;
    const int64_t count = std::min(piece.count, kMaxElements);
    pieces_.push_back({.parameter = piece.parameter->index,
                       .weights = weights.slice(0, count),
                       .before = backend.make_tensor(DType::kF32, {count}, "probe: weights before an update")});
  }
}

void UpdateProbe::before() {
  for (const Piece& piece : pieces_) backend_.cast({.src = piece.weights, .dst = piece.before}, stream_);
}

void UpdateProbe::after() {
  histograms_.clear(backend_, stream_);
  stagnation_.clear(backend_, stream_);
  for (const Piece& piece : pieces_) {
    const Shape& shape = piece.before.shape();
    const Tensor updated = scratch_.get(0, DType::kF32, shape), delta = scratch_.get(1, DType::kF32, shape);
    backend_.cast({.src = piece.weights, .dst = updated}, stream_);
    backend_.update_stagnation({.weight = piece.before, .updated = updated, .record = stagnation_[piece.parameter]},
                               stream_);
    backend_.cast({.src = piece.before, .dst = delta, .scale = -1.0f}, stream_);
    backend_.add({.a = updated, .b = delta, .y = delta}, stream_);
    backend_.exponent_histogram({.x = delta, .record = histograms_[piece.parameter]}, stream_);
  }
}

std::vector<ProbeRow> UpdateProbe::rows() {
  const auto histograms = histograms_.read(backend_, stream_);
  const auto stagnation = stagnation_.read(backend_, stream_);
  std::vector<ProbeRow> rows;
  for (int index = 0; index < parameters_.size(); ++index) {
    const DType working = parameters_[index].working_dtype;
    ProbeRow row{.role = probe_role::kUpdate, .tensor = parameters_[index].name, .format = std::string(name(working))};
    row.histogram = histograms[static_cast<size_t>(index)];
    row.losses = format_losses(row.histogram, format_of(working), 0);
    row.stagnation = stagnation[static_cast<size_t>(index)];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace mantissa
