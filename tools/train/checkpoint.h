// Checkpoints of a training run: what is saved and how it comes back. How files become a valid checkpoint is
// core/io/checkpoint_store.h's business.
//
//   model.safetensors                   working weights by parameter name (rank 0)
//   optimizer-00001-of-00002.safetensors  one rank's pieces: "<parameter>/<first element>/master", ".../m", ".../v";
//                                       without a master ".../weight" and perhaps ".../compensation"; of moments that
//                                       are codes ".../m_absmax" and ".../v_absmax"
//   scales.safetensors                  of delayed scaling, where there is any (rank 0)
//   manifest.json                       step, applied steps, scaler, clipper, seed, configuration, data fingerprint
//
// Pieces name parameters and element ranges, so that any number of ranks, sharded or not, loads what any other saved.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "core/io/checkpoint_store.h"
#include "tools/train/training_state.h"

namespace mantissa {

inline constexpr const char* kModelFile = "model.safetensors";

// The folder of a run's checkpoints.
std::string checkpoint_root(const std::string& run_dir);

// The checkpoint that `path` means: itself, or for a run folder or its checkpoints folder the newest valid one in it.
// CheckpointError that says what was expected otherwise.
std::string find_checkpoint_folder(const std::string& path);

// A checkpoint to go on from.
struct ResumePoint {
  std::string folder;
  int64_t step = 0;    // steps done
  nlohmann::json run;  // the manifest's "run" entry, see TrainingCheckpoints::save()
};

// The checkpoint that checkpoint.resume means, or nothing where the run starts from the beginning. Rank 0 decides, so
// that no two ranks resume from different ones. CheckpointError where it means one and there is none. Collective.
std::optional<ResumePoint> find_resume_point(const Config& config, Communicator& communicator);

class TrainingCheckpoints {
 public:
  // `run`: the configuration that is saved, and compared with that of a checkpoint, with its schedule of precision; the
  // session's is that of a phase. It must outlive the object.
  TrainingCheckpoints(Session& session, const Config& run);

  // Saves session.next_step; `extra` is kept in the manifest under "run". Returns false after a warning when a file
  // could not be written: older checkpoints stay and training may go on. Collective.
  bool save(const nlohmann::json& extra);

  // Goes on from a checkpoint. CheckpointError for a checkpoint that is damaged or
  // of another model, ConfigError for changed settings that shape the training. Collective.
  void resume(const ResumePoint& point);

 private:
  nlohmann::json state(const nlohmann::json& extra) const;
  std::vector<CheckpointFile> write_files(const std::string& folder) const;
  void require_same_training(const Checkpoint& checkpoint) const;
  void load_optimizer(const Checkpoint& checkpoint, int64_t applied_steps);
  void load_scales(const Checkpoint& checkpoint, const TrainingState& training);

  Session& session_;
  const Config& run_;
  CheckpointStore store_;
};

}  // namespace mantissa
