// How large a difference of losses is "equal" where nobody has said so.
#pragma once

#include <span>

namespace mantissa {

// The standard deviation of the final loss over the same training with several seeds, which is how much it depends on
// chance anyway. 0 where there are fewer than two of them, or where one has not learnt: losses of trainings that
// diverge spread without bound, and anything would be equal to them.
// Both in nats a token, in the order of seeds (TrainingRecord::first_loss(), final_loss()).
double seed_margin(std::span<const double> first_losses, std::span<const double> final_losses);

}  // namespace mantissa
