#include "tools/train/step/step_examiners.h"

#include <cmath>
#include <memory>

#include "amp/adaptive_precision.h"
#include "core/profile/range.h"

namespace mantissa {
namespace {

bool is_due(double threshold, int64_t interval, int64_t step) {
  return threshold > 0.0 && step > 0 && step % interval == 0;
}

}  // namespace

double gradient_prescale(const Session& session) {
  return std::ldexp(1.0, gradient_prescale_log2(session.ranks(), session.micro_batches()));
}

ProductObserver* ProbeExaminer::start_passes() {
  probe_.begin();
  return probe_.products();
}

void ProbeExaminer::after(StepReport& report) {
  report.probed = std::make_shared<const ProbedStep>(
      probe_.end(report.step, report.scale, report.applied, report.learning_rate));
}

CurvatureExaminer::CurvatureExaminer(const Session& session, StepWork& work)
    : options_(session.config.precision_adaptive.options),
      curvature_(session.sharded, work),
      prescale_(gradient_prescale(session)) {}

bool CurvatureExaminer::due(int64_t step) const {
  return is_due(options_.curvature, options_.curvature_interval, step);
}

bool NoiseExaminer::due(int64_t step) const {
  const AdaptiveOptions& options = session_.config.precision_adaptive.options;
  return is_due(options.gradient_noise, options.noise_interval, step);
}

void NoiseExaminer::before(int64_t step) {
  const Range range(RangeKind::kPhase, "calibrate");
  work_.load(step);
  const double factor = static_cast<double>(session_.scaler.current_scale()) * gradient_prescale(session_);
  work_.set_loss_gradient(factor / static_cast<double>(work_.count_global_tokens()));
  sum_of_squares_ = work_.sum_of_squared_norms() / (factor * factor);
}

void NoiseExaminer::after(StepReport& report) {
  if (!report.applied) return;
  report.gradient_noise = gradient_noise_of(sum_of_squares_, report.grad_norm * report.grad_norm,
                                            session_.ranks() * session_.micro_batches());
}

void IntegrityExaminer::after_passes(int64_t step) {
  guard_.after_passes(step, [this] {
    scales_.forget_records();
    work_.run();
  });
}

}  // namespace mantissa
