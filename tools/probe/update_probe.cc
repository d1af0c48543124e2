#include "tools/probe/update_probe.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/probe/args.h"

#include <algorithm>

namespace mantissa {

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
    backend_.run(UpdateStagnationArgs{.weight = piece.before, .updated = updated, .record = stagnation_[piece.parameter]},
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
    if (!knows(parameters_[index])) continue;
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
