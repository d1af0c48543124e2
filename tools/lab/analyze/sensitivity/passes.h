// LoweredPasses: passes over one batch from one point of a training, each in a precision of its own.
#pragma once

#include <optional>

#include "tools/lab/analyze/sensitivity/training_point.h"
#include "tools/train/step_work.h"

namespace mantissa {

class LoweredPasses {
 public:
  // `session` is in in_exact_precision(). Collective.
  explicit LoweredPasses(Session& session);

  // Makes the session's arena large enough for steps of this configuration, which differs from the session's in its
  // precision alone. ConfigError where the model refuses it.
  void make_room(const Config& config);
  // The batch that the following passes are about: that of this step of the training. Collective.
  void load(int64_t step);
  // Forward and backward passes and the sum over ranks: gradient_shard() is then that of the mean loss times
  // `loss_scale`. There must be room for the policy (make_room()). Returns the mean loss of the global batch in nats.
  // Collective.
  double run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer = nullptr);
  // The loss alone. Collective.
  double loss(const PrecisionPolicy* policy);
  // Updates masters, moments and weights by the gradients of run(), as the training would at this point. Whether these
  // were finite: nothing is updated else. Collective.
  bool update(float loss_scale);

  // What the schedule has at the point, or its peak where that is 0: the first step of a warm-up moves nothing.
  double learning_rate() const { return learning_rate_; }
  int64_t global_tokens() const { return tokens_; }
  TrainingPoint& point() { return point_; }
  Session& session() { return session_; }

 private:
  // Of this rank's tokens, after run().
  double sum_of_losses();
  double mean_of(double sum);

  Session& session_;
  StepWork work_;
  TrainingPoint point_;
  double learning_rate_;
  int64_t step_ = 0, tokens_ = 0;
};

}  // namespace mantissa
