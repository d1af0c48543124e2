#include "tools/train/step/step_examiners.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "amp/adaptive_precision.h"
#include "core/kernels/elementwise/args.h"
#include "core/profile/range.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

bool is_due(double threshold, int64_t interval, int64_t step) {
  return threshold > 0.0 && step > 0 && step % interval == 0;
}

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

double gradient_prescale(const Session& session) {
  return std::ldexp(1.0, gradient_prescale_log2(session.lanes(), session.micro_batches()));
}

RunProbe make_probe(const Config& config, ShardedState& state, DType reference) {
  const auto linear_layers = std::ranges::count(ops_of(config), Op::kLinear, &PlacedOp::op);
  return RunProbe(config, static_cast<int>(linear_layers), state, reference);
}

ProductObserver* ProbeExaminer::start_passes() {
  probe_.begin();
  return probe_.products();
}

void ProbeExaminer::after(StepReport& report) {
  report.probed =
      std::make_shared<const ProbedStep>(probe_.end(report.step, report.scale, report.applied, report.learning_rate));
}

CurvatureExaminer::CurvatureExaminer(const Session& session, StepWork& work)
    : options_(session.config.precision_adaptive.options),
      state_(session.sharded),
      work_(work),
      prescale_(gradient_prescale(session)) {}

bool CurvatureExaminer::due(int64_t step) const {
  return is_due(options_.curvature, options_.curvature_interval, step);
}

void CurvatureExaminer::before(int64_t /*step*/) {
  weights_.clear();
  for (const StatePiece& piece : state_.optimizer.pieces()) {
    weights_.push_back(values_of(piece, state_.backend, state_.stream));
  }
}

ExactSum CurvatureExaminer::gradient_dot_update() {
  Backend& backend = state_.backend;
  Stream& stream = state_.stream;
  const std::vector<StatePiece> pieces = state_.optimizer.pieces();
  ExactSum dot;
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
        const double update = static_cast<double>(after[i]) - static_cast<double>(before[i]);
        dot.add(static_cast<double>(gradient[i]) * update);
      }
    }
  }
  return dot;
}

void CurvatureExaminer::after(StepReport& step) {
  if (!step.applied || step.learning_rate == 0.0) return;
  struct Sums {
    ExactSum dot, loss;
  };
  const Sums mine{.dot = gradient_dot_update(), .loss = work_.loss_again()};
  Sums all;
  for (const Sums& sums : all_gather_records(state_.communicator, mine)) {
    all.dot += sums.dot;
    all.loss += sums.loss;
  }
  const double dot = all.dot.value() / (static_cast<double>(step.scale) * prescale_);
  if (dot >= 0.0) return;
  step.curvature = curvature_of(step.loss, all.loss.value() / static_cast<double>(step.tokens), dot);
}

bool NoiseExaminer::due(int64_t step) const {
  const AdaptiveOptions& options = session_.config.precision_adaptive.options;
  return is_due(options.gradient_noise, options.noise_interval, step);
}

void NoiseExaminer::before(int64_t step) {
  const Range range(RangeKind::kPhase, "calibrate");
  work_.load(step);
  const double factor = static_cast<double>(session_.scaler.current_scale()) * gradient_prescale(session_);
  work_.set_loss_gradient(factor, work_.count_global_tokens());
  sum_of_squares_ = work_.sum_of_squared_norms() / (factor * factor);
}

void NoiseExaminer::after(StepReport& report) {
  if (!report.applied) return;
  report.gradient_noise = gradient_noise_of(sum_of_squares_, report.grad_norm * report.grad_norm,
                                            session_.lanes() * session_.micro_batches());
}

void IntegrityExaminer::after_passes(int64_t step) {
  guard_.after_passes(step, [this] {
    scales_.forget_records();
    work_.run();
  });
}

}  // namespace mantissa
