// The weights of a run or checkpoint, and of models of other programs, one parameter at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/exchange/model_source.h"
#include "tools/train/checkpoint.h"
#include "tools/train/session.h"

namespace mantissa {

// Weights that a run computes with may be rounded to 16 bits; its optimizer keeps others, in fp32.
enum class RunWeights : uint8_t { kWorking, kMaster };

// `path`: as for train.init_from. Master weights only where a checkpoint has them. CheckpointError for one that is
// damaged.
std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights);

// Sets the parameter's weight, whose memory is there, to that of the source, rounded to the working dtype.
void load_weight(const ModelSource& source, Parameter& parameter, Backend& backend, Stream& stream);

// ---- Frozen weights (model.lora). A run folder holds them once, as they were stored where the run began, and all its
// checkpoints share them: they hold what is trained, and the digest of this file. So a run folder is whole without the
// model that it began with, and a checkpoint is as small as the adapters.
inline constexpr const char* kBaseFile = "base.safetensors";
inline constexpr const char* kBaseEntry = "base";  // of RunState in a manifest

// That file, for a checkpoint folder of the run.
std::string base_file_of(const std::string& checkpoint_folder);
// Gives the run folder its file: from `weights`, as find_initial_weights() returns them, or from the run of the
// checkpoint. Nothing if the run freezes no weights. CheckpointError, the same on all ranks, if the file is not the one
// that the checkpoint was trained with, or cannot be read or written. Collective.
std::optional<CheckpointFile> provide_base(const Config& run, const std::optional<ResumePoint>& checkpoint,
                                           const std::string& weights, Communicator& communicator);
// Sets the session's frozen weights, if there are any, to those of such a file or of a model. Without a path they stay
// the random ones. CheckpointError, the same on all ranks, if one of them cannot read it. Collective.
void load_frozen_weights(Session& session, const std::string& path);

// The folder or file that train.init_from means: of a run, its newest checkpoint; empty where the setting is. Rank 0
// looks for all, and reads every byte of a checkpoint once. CheckpointError for one that is damaged, or no weights;
// ConfigError for another model, for one with adapters, and for adapters without a model. Collective.
std::string find_initial_weights(const Config& run, Communicator& communicator);

// Sets masters and working weights to those in `found`, as find_initial_weights() returns it, and moments to zero.
// CheckpointError, the same on all ranks, if one of them cannot read it. Collective.
void load_initial_weights(Session& session, const std::string& found);

// Copies to the run folder what the model of train.init_from has beside its weights, and the files of the tokenizer.
void carry_model_files(const Config& run);

}  // namespace mantissa
