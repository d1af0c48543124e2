// The weights of a run or checkpoint, and of models of other programs, one parameter at a time.
#pragma once

#include <memory>
#include <string>

#include "tools/exchange/model_source.h"
#include "tools/train/session.h"

namespace mantissa {

// Weights that a run computes with may be rounded to 16 bits; its optimizer keeps others, in fp32.
enum class RunWeights : uint8_t { kWorking, kMaster };

// `path`: as for train.init_from. Master weights only where a checkpoint has them. CheckpointError for one that is
// damaged.
std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights);

// The folder or file that train.init_from means: of a run, its newest checkpoint; empty where the setting is. Rank 0
// looks for all, and reads every byte of a checkpoint once. CheckpointError for one that is damaged, or no weights;
// ConfigError for another model. Collective.
std::string find_initial_weights(const Config& run, Communicator& communicator);

// Sets masters and working weights to those in `found`, as find_initial_weights() returns it, and moments to zero.
// CheckpointError, the same on all ranks, if one of them cannot read it. Collective.
void load_initial_weights(Session& session, const std::string& found);

// Copies to the run folder what the model of train.init_from has beside its weights, and the files of the tokenizer.
void carry_model_files(const Config& run);

}  // namespace mantissa
