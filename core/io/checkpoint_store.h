// CheckpointStore: the folder of a run's checkpoints. Knows files, hashes and renames, not what is stored.
//
// A checkpoint is a folder step-00000100 with data files and manifest.json. It is written as step-00000100.partial:
// every rank writes and syncs its own files, then rank 0 writes the manifest, syncs, renames the folder and syncs its
// parent. A crash at any point leaves either the old checkpoints or the old and the new one; never a torn one under a
// valid name.
//
// Checkpoints are ordered by when they were saved, not by step: a run that starts again from the beginning or from an
// older checkpoint leaves later steps behind, and its first save must supersede them. Each manifest holds a number that
// counts saves; the newest checkpoint, and what keep_last keeps, go by it.
//
//   rank 0: folder = store.begin(step)                   all ranks: barrier
//   all:    CheckpointFileWriter file(store.partial_folder(step), "rank-0.safetensors"); …; record = file.close();
//   all:    gather records and failures
//   rank 0: store.commit(step, records, …), or store.abandon(step) if any rank failed
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/io/checkpoint_file.h"

namespace mantissa {

inline constexpr const char* kManifestName = "manifest.json";

struct Checkpoint {
  std::string folder;
  int64_t step = 0;
  int64_t save = 0;               // 1 for the first one saved in its store, 2 for the next, …
  std::string model_fingerprint;  // of the model that it belongs to
  std::vector<CheckpointFile> files;
  nlohmann::json state;  // free-form: scaler, schedule, RNG, data cursor, …
};

struct CheckpointStoreOptions {
  int keep_last = 2;                             // checkpoints to keep, those saved last; 0: all
  std::function<void(const std::string&)> warn;  // where warnings go; required
};

class CheckpointStore {
 public:
  // Makes no folder and reads nothing yet.
  CheckpointStore(std::string root, CheckpointStoreOptions options);

  // At the start, rank 0 only: removes what a killed run left half-written and finishes an interrupted replacement.
  void recover();

  // Rank 0: an empty folder for the files of this step. CheckpointError when it cannot be made.
  std::string begin(int64_t step);
  std::string partial_folder(int64_t step) const;
  // Rank 0, after all files are closed: makes the checkpoint valid and the newest, then removes old ones, except those
  // whose manifest cannot be read: nobody knows what they are. On CheckpointError the partial folder is gone and the
  // old checkpoints are as they were. `state` must hold no NaN or Inf: JSON has none.
  void commit(int64_t step, const std::string& model_fingerprint, const std::vector<CheckpointFile>& files,
              const nlohmann::json& state);
  // Rank 0: removes the partial folder. Never throws.
  void abandon(int64_t step) noexcept;

  // Steps that have a folder under a valid name, highest first; none of them is opened.
  std::vector<int64_t> steps() const;
  // The checkpoint saved last whose every byte is as written; others are skipped with a warning that names the file.
  std::optional<Checkpoint> latest_valid() const;
  std::string folder(int64_t step) const;

 private:
  // Those whose manifest can be read, the last saved first; the others' errors go to `unreadable`.
  std::vector<Checkpoint> manifests(const std::function<void(const CheckpointError&)>& unreadable) const;
  void prune();
  void replace(int64_t step);

  std::string root_;
  CheckpointStoreOptions options_;
};

// Reads and verifies one checkpoint folder: CheckpointError naming file, expected and found size or hash.
Checkpoint open_checkpoint(const std::string& folder);

}  // namespace mantissa
