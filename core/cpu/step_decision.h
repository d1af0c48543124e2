// The decision about one update: core/backend/update_decision.h.
#pragma once

#include "core/backend/update_decision.h"

namespace mantissa::cpu {

void record_verdict(const RecordVerdictArgs& args);
void decide_update(const DecideUpdateArgs& args);

}  // namespace mantissa::cpu
