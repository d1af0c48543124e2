// Checkpoints of a training run: saving and resuming. core/io/checkpoint_store.h makes files a valid checkpoint.
//
//   model.safetensors                   working weights that are trained, by parameter name (rank 0)
//   optimizer-00001-of-00002.safetensors  a rank's pieces: "<parameter>/<first element>/master", ".../m", ".../v";
//                                       without a master ".../weight" and perhaps ".../compensation"; 8-bit moments
//                                       have ".../m_absmax" and ".../v_absmax". With error feedback also
//                                       "<parameter>/<lane>/residual" of whole parameters in the rank's lanes
//   scales.safetensors                  of delayed scaling, if there is any (rank 0)
//   manifest.json                       step, applied steps, scaler, clipper, seed, configuration, data fingerprint
//
// Pieces name parameters and element ranges: any number of ranks, sharded or not, loads what any other saved.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd/delayed_scales.h"
#include "core/io/checkpoint_store.h"
#include "tools/run/state/run_folder.h"
#include "tools/run/state/run_state.h"
#include "tools/train/step/session.h"

namespace mantissa {

// A checkpoint to continue from.
struct ResumePoint {
  std::string folder;
  int64_t step = 0;       // steps done
  nlohmann::json run;     // the manifest's "run" entry: see run_state.h
  bool is_named = false;  // by checkpoint.resume: no other will do
};

// A checkpoint that is at fault itself, where the configuration is not: `auto` takes the one before.
class DamagedCheckpoint final : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// The checkpoint that checkpoint.resume names; nothing if the run starts from the beginning. `auto` takes the newest
// sound checkpoint of train.run_dir, and warns about newer damaged ones. The folder of another run does so, too, if
// train.run_dir has its own checkpoints; so does a job restarted with the same command line. Rank 0 decides for all.
// CheckpointError if a named checkpoint does not exist. `passed_over`: folders unusable for resume() and not named.
// Collective.
std::optional<ResumePoint> find_resume_point(const Config& config, Communicator& communicator,
                                             const std::vector<std::string>& passed_over = {});

// The lanes of the checkpoint with which the run would go on; 0 without a readable checkpoint, or if they do not divide
// the batch. Rank 0 decides for all. Collective.
int find_kept_lanes(const Config& config, Communicator& communicator);

// Whether the run has done its last step and ended well, and these settings would not be refused: the point is its own
// last checkpoint. Rank 0 decides for all; there, `unused` receives settings that differ, as training_differences() and
// reporting_differences() find them. Collective.
bool is_finished(const Config& run, const ConfigOrigins& origins, const ResumePoint& point, Communicator& communicator,
                 std::vector<std::string>& unused);

// The checkpoint that a rollback to this point returns to: the point's own or, if it is damaged, an earlier checkpoint
// saved at checkpoint.interval. CheckpointError if there is none. Rank 0 decides for all. Collective.
ResumePoint find_rollback_point(const Config& config, const RollbackPoint& point, Communicator& communicator,
                                const std::vector<std::string>& passed_over = {});

// The state that a run had at the checkpoint.
RunState run_state_of(const Config& run, const ResumePoint& point);

// Continues from a checkpoint: weights, optimizer, scaler, clipper, scales and data position. `run`: the configuration
// with its schedule of precision, compared with the checkpoint's; the session has the configuration of a phase.
// DamagedCheckpoint if some rank cannot use it, CheckpointError for another model, ConfigError for changed settings
// that shape the training: the same on all ranks. After an error the session is not usable. Collective.
void resume(Session& session, const Config& run, const ResumePoint& point);
// The errors of resume() for settings that differ, without a session. Collective.
void require_same_training(const Config& run, const ResumePoint& point, Communicator& communicator);

class TrainingCheckpoints {
 public:
  // `run`: the configuration that is saved. `folder`: the run's, on rank 0; null: nobody looks whether it is still
  // there. All must outlive the object.
  TrainingCheckpoints(Session& session, const Config& run, RunFolder* folder = nullptr);

  // Saves session.next_step; at checkpoint.interval this is the new state.rollback_point. Returns false after a warning
  // if a file could not be written, or if masters or moments are not finite: older checkpoints stay and training may
  // continue. Removes checkpoints beyond checkpoint.keep_last, except state.proven_step and the target of a rollback.
  // Collective.
  bool save(RunState& state);

 private:
  // On rank 0, makes the files valid, as named in the texts of all ranks. Returns the error; empty without any.
  std::string commit(const std::vector<std::vector<std::string>>& texts, const RunState& state,
                     const std::optional<RollbackPoint>& point);
  // `point`: what a rollback returns to from the saved state.
  nlohmann::json manifest(const RunState& state, const std::optional<RollbackPoint>& point) const;
  std::vector<CheckpointFile> write_files(const std::string& folder) const;
  uint64_t part_bytes() const;  // of these files, but for headers

  Session& session_;
  const Config& run_;
  RunFolder* const folder_;
  CheckpointStore store_;
};

// ---- The state between two sessions, in host memory.

TrainingState state_of(const Session& session);

// Restores scaler, clipper and the number of steps. A scaler of another mode starts afresh, and the log says so.
void continue_from(const TrainingState& state, Session& session);
// Afterwards restores the scales of delayed scaling; converts gradient scales to the session's loss scale.
void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session);

// A training's state in host memory, between a session and the next one in another precision. The two do not exist at
// the same time: a device has room for one. Pieces have the form of checkpoints, so that a hand-over gives the bits of
// saving and resuming.
class HeldState {
 public:
  // Copies this rank's shard. Collective.
  explicit HeldState(Session& session);

  // Into a session of the same model and data. Another precision has other shards: every rank is shown the pieces of
  // all ranks, one of each at a time. Collective.
  void hand_over(Session& session) const;

  // The same numbers without this rank's pieces: for ranks that did not exist when the state was taken.
  HeldState without_pieces() const { return {numbers_, scales_}; }

  const TrainingState& numbers() const { return numbers_; }

 private:
  HeldState(TrainingState numbers, DelayedScales::State scales)
      : numbers_(std::move(numbers)), scales_(std::move(scales)) {}

  TrainingState numbers_;
  DelayedScales::State scales_;
  std::vector<std::vector<std::byte>> pieces_;
  std::vector<std::byte> residuals_;  // of this rank's lanes
};

}  // namespace mantissa
