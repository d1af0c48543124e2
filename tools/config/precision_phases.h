// The phases of a training: precision.schedule divides its steps into stretches of one precision each. Phase 0 has the
// settings of `precision` themselves, phase i those of precision.schedule[i - 1]. Where the precision adapts, phases
// are the levels of precision.adaptive instead, and it is the training's state that says which of them a step has
// (tools/train/run_state.h). Who trains works with the configuration of a phase, which has neither.
#pragma once

#include "tools/config/config.h"

namespace mantissa {

inline bool adapts(const Config& config) { return !config.precision_adaptive.levels.empty(); }

int phase_count(const Config& config);
// The phase of the step that comes after `steps` steps. Of a precision that adapts: the one that it begins with.
int phase_at(const Config& config, int64_t steps);
// The steps that have been done when a phase begins, and when it ends: where the next one begins, or train.steps. Of a
// precision that adapts, no step is known to.
int64_t phase_begin(const Config& config, int phase);
int64_t phase_end(const Config& config, int phase);

// The configuration with the precision of a phase. A scaler.mode that is auto is what this precision needs. What is
// about rounding that this phase does not have (optimizer.weight_rounding, comm.gather) is left out.
Config in_phase(const Config& config, int phase);
Config at_step(const Config& config, int64_t steps);

// The configuration of a phase with the layers lifted that precision.fallback has lifted.
Config with_lifts(Config phase, const PrecisionFallback& fallback);

// "precision.schedule[0]", or "precision" for phase 0, or "precision.adaptive.levels[0]"; and with where it was
// written, for errors.
std::string phase_path(const Config& config, int phase);
std::string phase_name(const Config& config, int phase);

// What a phase is, behind "for this model" in what is printed of it: "", ", after step 500", ", level 1".
std::string phase_title(const Config& config, int phase);

// validate() of every phase, and problems of the schedule itself. ConfigError that names the phase, MeaninglessSettings
// about the first.
void validate_phases(const Config& config);

}  // namespace mantissa
