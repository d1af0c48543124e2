// Weights that a training begins with, and the file of its frozen weights.
#pragma once

#include <optional>
#include <string>

#include "tools/train/checkpoint.h"
#include "tools/train/step/session.h"

namespace mantissa {

// Writes the file of frozen weights to the run folder: from `weights`, as find_initial_weights() returns them, or from
// the run of the checkpoint. Nothing if the run freezes no weights. CheckpointError, the same on all ranks, if the file
// differs from the file in the checkpoint's training, or cannot be read or written. Collective.
std::optional<CheckpointFile> provide_base(const Config& run, const std::optional<ResumePoint>& checkpoint,
                                           const std::string& weights, Communicator& communicator);
// Sets the session's frozen weights, if there are any, to those of such a file or of a model. Without a path they stay
// the random ones. CheckpointError, the same on all ranks, if one of them cannot read it. Collective.
void load_frozen_weights(Session& session, const std::string& path);

// The folder or file that train.init_from means: of a run, its newest checkpoint; empty where the setting is. Rank 0
// looks for all, and reads every byte of a checkpoint once. CheckpointError if it is damaged or not weights;
// ConfigError for another model, a model with adapters, or adapters without a model. Collective.
std::string find_initial_weights(const Config& run, Communicator& communicator);

// Sets masters and working weights to those in `found`, as find_initial_weights() returns it, and moments to zero.
// CheckpointError, the same on all ranks, if one of them cannot read it. Collective.
void load_initial_weights(Session& session, const std::string& found);

// Copies to the run folder what the model of train.init_from, or the run of the checkpoint, has beside its weights. A
// training that begins adds the files of the tokenizer and the positions of the model. Each start adds the template of
// conversations among the data, with the end of a turn; a warning if it replaces another.
void carry_model_files(const Config& run, const ResumePoint* checkpoint);

}  // namespace mantissa
