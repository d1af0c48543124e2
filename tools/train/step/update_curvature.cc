#include "tools/train/step/update_curvature.h"

#include <algorithm>

#include "amp/adaptive_precision.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

// As fp32.
std::vector<float> values_of(const Tensor& stored, Backend& backend, Stream& stream) {
  Tensor wide = stored;
  if (stored.dtype() != DType::kF32) {
    wide = backend.make_tensor(DType::kF32, stored.shape(), "values of an update");
    backend.run(CastArgs{.src = stored, .dst = wide}, stream);
  }
  std::vector<float> values(static_cast<size_t>(wide.numel()));
  backend.download(wide, values.data(), stream);
  return values;
}

// The masters, or the weights if there are none.
std::vector<float> values_of(const StatePiece& piece, Backend& backend, Stream& stream) {
  return values_of(piece.master.defined() ? piece.master : piece.weight, backend, stream);
}

}  // namespace

void UpdateCurvature::before() {
  weights_.clear();
  for (const StatePiece& piece : state_.optimizer.pieces()) {
    weights_.push_back(values_of(piece, state_.backend, state_.stream));
  }
}

double UpdateCurvature::gradient_dot_update() {
  Backend& backend = state_.backend;
  Stream& stream = state_.stream;
  const std::vector<StatePiece> pieces = state_.optimizer.pieces();
  double dot = 0.0;
  for (int bucket = 0; bucket < state_.buckets.size(); ++bucket) {
    const Tensor gradients = state_.reducer.result_shard(bucket);
    for (const Segment& segment : state_.buckets.layout().shard_segments(bucket, state_.communicator.rank())) {
      const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const StatePiece& candidate) {
        return candidate.parameter->index == segment.parameter && candidate.begin == segment.begin;
      });
      MANTISSA_CHECK(piece != pieces.end() && piece->count == segment.count,
                     "[update_curvature] the optimizer has no piece of parameter {} from {} on", segment.parameter,
                     segment.begin);
      const std::vector<float>& before = weights_[static_cast<size_t>(piece - pieces.begin())];
      const std::vector<float> after = values_of(*piece, backend, stream);
      const std::vector<float> gradient = values_of(gradients.slice(segment.offset, segment.count), backend, stream);
      for (size_t i = 0; i < after.size(); ++i) {
        dot += static_cast<double>(gradient[i]) * (static_cast<double>(after[i]) - static_cast<double>(before[i]));
      }
    }
  }
  return dot;
}

std::optional<double> UpdateCurvature::after(const StepReport& step, double prescale) {
  if (!step.applied || step.learning_rate == 0.0) return std::nullopt;
  struct Sums {
    double dot = 0.0, loss = 0.0;
  };
  const Sums mine{.dot = gradient_dot_update(), .loss = work_.loss_again()};
  Sums all;
  for (const Sums& sums : all_gather_records(state_.communicator, mine)) {
    all.dot += sums.dot;
    all.loss += sums.loss;
  }
  const double dot = all.dot / (static_cast<double>(step.scale) * prescale);
  if (dot >= 0.0) return std::nullopt;
  return curvature_of(step.loss, all.loss / static_cast<double>(step.tokens), dot);
}

}  // namespace mantissa
