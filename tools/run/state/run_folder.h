// The folder of a run, held by one job at a time: its lock, its checkpoints, how a start begins in it
// (checkpoint.resume), and the commands to give after a run.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "core/io/checkpoint_store.h"
#include "tools/config/config.h"

namespace mantissa {

// Rank 0 has one.
class RunFolder {
 public:
  // Makes the folder and locks it until the object goes. ConfigError if it cannot be written, another job holds it,
  // it holds a model of another program, or a folder in it is a symbolic link or cannot take checkpoints.
  explicit RunFolder(const std::string& path) : path_(path) { hold(); }
  ~RunFolder() {
    begin(time_);
    release();
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Gives the lock a `time`, in seconds of Unix time, which read_status() takes for the start's: first when the start
  // cannot be refused any more, then with its first heartbeat. Without a call, the lock keeps the time it had.
  void begin(double time);

  // Replaces config.yaml by the resolved settings, as_kept(), at once: a reader sees the old file or the new one.
  void write_config(const Config& config);

  // Where somebody has removed the lock, or the folder with it: makes it, unless somebody has, locks it, writes its
  // config.yaml and warns, once for each time. CheckpointError if it cannot be written, another job has begun in it, or
  // a folder in it is a link.
  void ensure_held();

 private:
  void hold();
  void release();
  void write_config_text() const;

  std::string path_, config_;  // its text, once it is written
  int folder_ = -1, lock_ = -1;
  double time_ = 0.0;  // of the lock when the object goes
};

// The entry of a manifest with the checkpoint.resume of the start that saved it.
inline constexpr const char* kResumeEntry = "resume";

// The checkpoint of `path`: itself, or the newest valid one of a run or checkpoints folder. CheckpointError if absent.
// Warns of a checkpoint that was copied out of its run.
std::string find_checkpoint_folder(const std::string& path);

// Whether this is the folder of a checkpoint of the run itself.
bool is_own_checkpoint(const std::string& folder, const Config& run);

// How this start begins: `auto`, `none` or a folder. It is checkpoint.resume, but `auto` if the run has checkpoints of
// its own from the same command line. The folder of another run is only the beginning, and a restarted job does not
// begin anew, or go back, once more. `store`: the checkpoints of the run. `tells` in the log what is not as given. Rank
// 0 only.
std::string choose_beginning(const Config& run, const CheckpointStore& store, bool tells = true);

// A log_common_warning() in lines that fit a console.
void warn_in_lines(const std::string& text);

// Warns of a folder whose metrics show steps, but without checkpoints: removed, or not yet saved. Rank 0 only.
void warn_of_lost_steps(const Config& run);

// The settings for config.yaml, with which a later start goes on: it begins anew, or goes back, only if told so again.
Config as_kept(Config run);

// A word as a shell reads it back: quoted if necessary.
std::string shell_word(const std::string& text);

// How to use a run that has done its steps, in two or three lines: "to generate: mantissa generate runs/mine --prompt
// …". The program is called as this process was.
std::string next_commands(const Config& run, int ranks);

// For a start without a step left: "already finished: 20 of 20 steps in runs/mine; …". `origins`: of
// train.stop_at_step.
std::string finished_text(const Config& run, const ConfigOrigins& origins);

// ---- A checkpoint's manifest: entries that are checked before they are used.

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr int kStateVersion = 1;  // of the state in a manifest
// An entry of the manifest of weights without a state of training: an imported model.
inline constexpr const char* kWeightsOnly = "weights_only";

// An entry of a manifest that no run can have saved, such as a negative count; read_state() adds where the manifest is.
class DamagedEntry final : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Runs `read`, which reads the state in the manifest of a checkpoint folder. CheckpointError for damaged entries, and
// for missing entries or another type, as another version of this program may write them.
template <typename Read>
auto read_state(const std::string& folder, const Read& read) {
  try {
    return read();
  } catch (const DamagedEntry& error) {
    throw CheckpointError("{}/{}: {}", folder, kManifestName, error.what());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError("{}/{}: {}; another version of this program may have written it", folder, kManifestName,
                          error.what());
  }
}

}  // namespace mantissa
