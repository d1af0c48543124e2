// The phases of a training: precision.schedule divides its steps into stretches, each in a single precision. Phase 0
// has the settings of `precision` itself, phase i those of precision.schedule[i - 1]. If the precision adapts, phases
// are the levels of precision.adaptive instead, and the training's state records the level of a step
// (tools/run/state/run_state.h). Sessions work with the configuration of a single phase, without schedule and levels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

inline bool adapts(const Config& config) { return !config.precision_adaptive.levels.empty(); }

int phase_count(const Config& config);
// The phase of the step that comes after `steps` steps; with an adaptive precision, the phase of the first step.
int phase_at(const Config& config, int64_t steps);
// The number of steps done when a phase begins, and when it ends: at the next phase, or at train.steps. An adaptive
// precision fixes no step.
int64_t phase_begin(const Config& config, int phase);
int64_t phase_end(const Config& config, int phase);

// The configuration with the precision of a phase. `scaler.mode: auto` is resolved for it.
Config in_phase(const Config& config, int phase);
inline Config at_step(const Config& config, int64_t steps) { return in_phase(config, phase_at(config, steps)); }

// "precision.schedule[0]", or "precision" for phase 0, or "precision.adaptive.levels[0]".
std::string phase_path(const Config& config, int phase);
// precision_name() of all phases, for messages; phase_path() for phases that would share a name.
std::vector<std::string> phase_names(const Config& config);
// For headings after "for this model": "", ", after step 500", ", with precision.adaptive.levels[1]".
std::string phase_title(const Config& config, int phase);

// validate() of every phase, and checks of the schedule or ladder itself. ConfigError that names the phase.
void validate_phases(const Config& config, const ConfigOrigins& origins = {});

// ---- Short names of precisions, such as "mxfp8:attention_high".

// The uniform precisions, the most exact first: "fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16", and the
// recipes "delayed", "current", "block", "mxfp8", "nvfp4" over bf16.
std::vector<std::string> uniform_precisions();
// The precision of one of these names, of "fp8" for "delayed" and "fp4" for "nvfp4", or of a recipe with a format, each
// also with a pattern. Nothing for other texts.
std::optional<PrecisionConfig> parse_precision(const std::string& name);
// The name without an alias. Rules, working weights and the dtype below a recipe do not show in it.
std::string precision_name(const PrecisionConfig& precision);
// The same for a name that parse_precision() reads; other texts as they are.
std::string without_alias(const std::string& name);

// The format to which "bf16", "fp16" or a recipe lowers products. Nothing for other texts.
std::optional<RuleFormat> parse_low_format(const std::string& text);

}  // namespace mantissa
