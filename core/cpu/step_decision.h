// The decision about one update: core/backend/update_decision.h.
#pragma once

#include "core/backend/update_decision.h"

namespace mantissa::cpu {

void record_loss(const RecordLossArgs& args);
void decide_update(const DecideUpdateArgs& args);

}  // namespace mantissa::cpu
