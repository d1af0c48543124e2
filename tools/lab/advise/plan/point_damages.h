// What everything but single layers does to the loss, from a point of a training that is in exact precision.
#pragma once

#include <optional>
#include <vector>

#include "tools/lab/advise/plan/shared_trials.h"

namespace mantissa {

// What all that no plan decides about does to the loss when it is in 16 bits, in nats: its mean over batches and one
// standard error, as layers' damages. `session`: in in_exact_precision(). ConfigError where that is not finite.
double rest_damage(const Config& config, DType low, const std::vector<PlannedPlace>& layers, int64_t batches,
                   Session& session);

// try_shared() from the session's point on, for a training on trials.ranks, for which as few stand as do. The session's
// model makes room for theirs meanwhile. Places that cannot be tried are left as configured.
std::vector<SharedDamage> shared_damages(const Config& config, DType low, SharedTrials trials,
                                         std::vector<PlannedPlace>& places, std::optional<Session>& session,
                                         Communicator& communicator);

}  // namespace mantissa
