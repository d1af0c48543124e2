// Commands to give after a run.
#pragma once

#include <string>

#include "tools/config/config.h"

namespace mantissa {

// A word as a shell reads it back: quoted if necessary.
std::string shell_word(const std::string& text);

// How to use a run that has done its steps, in two or three lines: "to generate: mantissa generate runs/mine --prompt
// …". The program is called as this process was.
std::string next_commands(const Config& run, int ranks);

// For a start of a run that has no step left: "already finished: 20 of 20 steps in runs/mine; …". `origins` say where a
// train.stop_at_step stands.
std::string finished_text(const Config& run, const ConfigOrigins& origins);

}  // namespace mantissa
