// The data files of a checkpoint: optimizer pieces and model weights as safetensors.
#pragma once

#include <string>
#include <vector>

#include "comm/sharded_state.h"
#include "core/autograd/delayed_scales.h"
#include "core/io/checkpoint_store.h"
#include "core/io/safetensors.h"

namespace mantissa {

inline constexpr const char* kScalesFile = "scales.safetensors";

// Pieces of weights, with or without masters, and moments, and residuals of error feedback, as safetensors.
void write_optimizer_pieces(ByteSink& sink, const std::vector<StatePiece>& pieces,
                            const std::vector<LaneResidual>& residuals, Backend& backend, Stream& stream);

// Hands the pieces of this rank to the optimizer, between begin_load() and end_load(), and residuals of its lanes to
// the reducer.
void load_optimizer_pieces(const SafetensorsReader& reader, ShardedState& state);

// Bytes of all pieces and residuals in a file, but for its header.
uint64_t optimizer_file_bytes(const ShardedState& state);

// The room that the disk of `folder` lacks for a checkpoint of so many bytes, if `error` says that a disk is full; else
// empty.
std::string shortage_text(const std::string& error, uint64_t bytes, const std::string& folder, int keep_last);

// "<tensor>/scale" and "<tensor>/amaxes" of every tensor that delayed scaling knows.
CheckpointFile write_scales_file(const std::string& folder, const std::string& name, const DelayedScales& scales);

// CheckpointError naming a tensor whose numbers do not go together.
DelayedScales::State read_scales_file(const std::string& path);

// Every parameter's working weight under its name.
CheckpointFile write_model_file(const std::string& folder, const std::string& name, const ParameterSet& parameters,
                                Backend& backend, Stream& stream);

}  // namespace mantissa
