// The weights of a run, of a checkpoint or of a model of another program, one parameter at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <set>
#include <string>

#include "core/backend/backend.h"
#include "tools/model/exchange/model_source.h"

namespace mantissa {

// Weights that a run computes with may be rounded to 16 bits; its optimizer keeps others, in fp32.
enum class RunWeights : uint8_t { kWorking, kMaster };

// `path`: as for train.init_from. Master weights only if a checkpoint has them. CheckpointError for a damaged
// checkpoint.
std::unique_ptr<ModelSource> open_model(const std::string& path, RunWeights weights);

// The same for a model of another program, or a checkpoint whose bytes were read before.
std::unique_ptr<ModelSource> open_found(const std::string& path, RunWeights weights);

// config.json of the Hugging Face files that a run has taken along, or of such a folder; empty without it. ConfigError
// for a damaged file: an export without its token ids would be a worse model. `name`: another of the JSON files.
nlohmann::json carried_config(const std::string& path, const std::string& name = "config.json");

// The token ids that end a text by generation_config.json in the same folder, or else by config.json, as in
// transformers. Numbers beyond every vocabulary, such as -1, count for nothing.
std::set<int32_t> end_ids(const std::string& path);

// The positions of the model at `path`. With RoPE they are at least the number in carried_config(): training on shorter
// sequences takes no positions away.
int64_t positions_of(const std::string& path, const ModelConfig& model);

// Sets the parameter's weight, whose memory is there, to that of the source, rounded to the working dtype.
void load_weight(const ModelSource& source, Parameter& parameter, Backend& backend, Stream& stream);

// ---- Frozen weights (model.lora). A run folder holds them once, as they were stored where the run began, and all its
// checkpoints share them: they hold what is trained, and the digest of this file. So a run folder is whole without the
// model that it began with, and a checkpoint is as small as the adapters.
inline constexpr const char* kBaseFile = "base.safetensors";
inline constexpr const char* kBaseEntry = "base";  // of RunState in a manifest

// That file, for a checkpoint folder of the run.
std::string base_file_of(const std::string& checkpoint_folder);
// That file. CheckpointError if it is missing, or not the file that the checkpoint was trained with. `run_entry`:
// of the checkpoint's manifest.
std::string checked_base(const std::string& checkpoint_folder, const nlohmann::json& run_entry);

}  // namespace mantissa
