// The checkpoint that a path names, and how a start begins: checkpoint.resume, in a run that may have checkpoints.
#pragma once

#include <string>

#include "core/io/checkpoint_store.h"
#include "tools/config/config.h"

namespace mantissa {

// The entry of a manifest with the checkpoint.resume of the start that saved it.
inline constexpr const char* kResumeEntry = "resume";

// The checkpoint that `path` names: itself, or the newest valid one of a run folder or a checkpoints folder.
// CheckpointError that says what was expected.
std::string find_checkpoint_folder(const std::string& path);

// Whether this is the folder of a checkpoint of the run itself.
bool is_own_checkpoint(const std::string& folder, const Config& run);

// How this start begins: `auto`, `none` or a folder. That is checkpoint.resume, but `auto` where the run has its own
// checkpoints and the command line is one that led to them: the folder of another run is only the beginning, and a
// restarted job does not begin anew, or go back, once more. `store`: the checkpoints of the run. Rank 0 only.
std::string choose_beginning(const Config& run, const CheckpointStore& store);

// A warning at the start of a run, in lines that fit a console. Rank 0 only.
void warn_in_lines(const std::string& text);

// Warns of a folder without checkpoints whose metrics show steps: somebody has removed them, or the job ended before
// the first. Rank 0 only.
void warn_of_lost_steps(const Config& run);

// The settings for config.yaml, with which a later start goes on: it begins anew, or goes back, only if told so again.
Config as_kept(Config run);

}  // namespace mantissa
