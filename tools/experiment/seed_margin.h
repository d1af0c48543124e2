// How large a difference of losses is "equal" where nobody has said so.
#pragma once

#include <span>

namespace mantissa {

struct TrainingRecord;

// Of a training that came to its last step, nats a token.
struct LossSpan {
  double first = 0.0;  // of its first weights: on the validation text, or, without one, on the first batch
  double last = 0.0;   // TrainingRecord::final_loss()

  bool has_learnt() const { return last < first; }
};

LossSpan loss_span(const TrainingRecord& record);

// The standard deviation of the last loss over the same training with several seeds, which is how much it depends on
// chance anyway. 0 where there are fewer than two of them, or where one has not learnt: losses of trainings that
// diverge spread without bound, and anything would be equal to them.
double seed_margin(std::span<const LossSpan> seeds);

}  // namespace mantissa
