// Examinations of some steps of a training: probes, curvature, noise of the gradient, corruption.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/probe/run_probe.h"
#include "tools/run/guard/integrity.h"
#include "tools/train/step/step_work.h"

namespace mantissa {

// Work beside the steps that are due. While it examines a step, no other step is under way. Calls come on all ranks
// alike: before(), the calls within the step, after(), which examiners get in the reverse order.
class StepExaminer {
 public:
  virtual ~StepExaminer() = default;

  virtual bool due(int64_t step) const = 0;
  virtual void before(int64_t /*step*/) {}
  // The outcome of the step is known. Adds the findings to its report.
  virtual void after(StepReport&) {}

  // Whether the examiner takes part in the step by the calls below. A CUDA graph replays no such step.
  virtual bool takes_part() const { return false; }
  // Before the passes. Returns the observer of the first micro-batch's products, if there is one.
  virtual ProductObserver* start_passes() { return nullptr; }
  // The summed gradients are complete.
  virtual void after_passes(int64_t /*step*/) {}
  virtual void before_update() {}
  virtual void after_update() {}
};

// The factor that gradients carry beside the loss scale (comm/comm_options.h).
double gradient_prescale(const Session& session);

// `config`: of the session that the state belongs to. `reference`: see ProductProbe. The state must outlive the probe.
RunProbe make_probe(const Config& config, ShardedState& state, DType reference = DType::kF32);

// Measures rounding (probe.interval). The probe must outlive the object.
class ProbeExaminer final : public StepExaminer {
 public:
  explicit ProbeExaminer(RunProbe& probe) : probe_(probe) {}

  bool due(int64_t step) const override { return probe_.due(step); }
  void after(StepReport& report) override;
  bool takes_part() const override { return true; }
  ProductObserver* start_passes() override;
  void after_passes(int64_t) override { probe_.gradients_ready(); }
  void before_update() override { probe_.before_update(); }
  void after_update() override { probe_.after_update(); }

 private:
  RunProbe& probe_;
};

// Measures the curvature along the update (precision.adaptive.curvature): how far the loss of a step's own batch after
// the update is from the gradient's promise (curvature_of() in amp/adaptive_precision.h). The loss comes from the same
// micro-batches in one more forward pass each, with the same dropout. Update and gradient are multiplied on the host,
// in double: in the precision under judgement small products would be lost. Nothing is found where the step was
// skipped, its rate was 0, or the update does not lead downhill to first order, as momentum may not.
//
// Cost: about a third of a step for the forward passes and three copies of this rank's weights from the device, and one
// copy of them in host memory. The session and work must outlive the object.
class CurvatureExaminer final : public StepExaminer {
 public:
  CurvatureExaminer(const Session& session, StepWork& work);

  bool due(int64_t step) const override;
  void before(int64_t step) override;
  void after(StepReport& report) override;

 private:
  ExactSum gradient_dot_update();  // over this rank's shard

  const AdaptiveOptions& options_;
  const ShardedState& state_;
  StepWork& work_;
  const double prescale_;
  std::vector<std::vector<float>> weights_;  // before the update, by piece of the optimizer
};

// Compares the gradients of micro-batches (precision.adaptive.gradient_noise). The session and work must outlive the
// object.
class NoiseExaminer final : public StepExaminer {
 public:
  NoiseExaminer(const Session& session, StepWork& work) : session_(session), work_(work) {}

  bool due(int64_t step) const override;
  void before(int64_t step) override;
  void after(StepReport& report) override;

 private:
  const Session& session_;
  StepWork& work_;
  double sum_of_squares_ = 0.0;  // squared norms of the micro-batches' shares of the unscaled gradient
};

// Looks for silent corruption (integrity.interval). All must outlive the object.
class IntegrityExaminer final : public StepExaminer {
 public:
  IntegrityExaminer(IntegrityGuard& guard, DelayedScales& scales, StepWork& work)
      : guard_(guard), scales_(scales), work_(work) {}

  bool due(int64_t step) const override { return guard_.is_due(step); }
  void after(StepReport& report) override { guard_.after_step(report.step); }
  bool takes_part() const override { return true; }
  // Runs the passes once more, and compares.
  void after_passes(int64_t step) override;

 private:
  IntegrityGuard& guard_;
  DelayedScales& scales_;
  StepWork& work_;
};

}  // namespace mantissa
