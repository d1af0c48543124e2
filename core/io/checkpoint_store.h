// Checkpoints on disk: files, hashes, manifests and renames. It does not know what is stored.
//
// A checkpoint is a folder step-00000100 with data files and manifest.json. It is written as step-00000100.partial:
// every rank writes and syncs its own files, then rank 0 writes the manifest, syncs, renames the folder and syncs its
// parent. A crash at any point leaves the old checkpoints, perhaps with the new one, but never an incomplete checkpoint
// under a valid name.
//
// Checkpoints are ordered by when they were saved, not by step: a run that starts again from the beginning or from an
// older checkpoint leaves later steps behind, and its first save must supersede them. Each manifest holds the number of
// its save. The highest number marks the newest checkpoint, and keep_last keeps the highest numbers.
//
//   rank 0: folder = store.begin(step)                   all ranks: barrier
//   all:    CheckpointFileWriter file(store.partial_folder(step), "rank-0.safetensors"); …; record = file.close();
//   all:    gather records and failures
//   rank 0: store.commit(step, records, …), or store.abandon(step) if any rank failed
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/io/files.h"

struct XXH3_state_s;

namespace mantissa {

inline constexpr const char* kManifestName = "manifest.json";

struct CheckpointFile {
  std::string name;  // without folders
  uint64_t size_bytes = 0;
  std::string xxh3_128;  // 32 hexadecimal digits
};

// Hashes a file while writing it. After close() the file is on disk.
class CheckpointFileWriter final : public ByteSink {
 public:
  // Creates folder/name. This and every write throws CheckpointError with the system's reason (no space, file too
  // large, short write). A program that sets RLIMIT_FSIZE must ignore SIGXFSZ to get this error.
  CheckpointFileWriter(const std::string& folder, const std::string& name);
  ~CheckpointFileWriter() override;
  CheckpointFileWriter& operator=(CheckpointFileWriter&&) = delete;

  void write(std::span<const std::byte> bytes) override;
  CheckpointFile close();  // flushes to the disk and returns the record for the manifest

 private:
  [[noreturn]] void fail(const char* operation, int error) const;

  std::string path_;
  CheckpointFile file_;
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> hash_;
  int descriptor_ = -1;
};

std::string xxh3_128_hex(std::span<const std::byte> bytes);  // XXH3-128 of bytes in memory, as 32 hexadecimal digits

struct Checkpoint {
  std::string folder{};
  int64_t step = 0;
  int64_t save = 0;               // 1 for the first one saved in its store, 2 for the next, …
  std::string model_fingerprint;  // of the model that it belongs to
  std::vector<CheckpointFile> files{};
  nlohmann::json state;  // free-form: scaler, schedule, RNG, data cursor, …
};

// Reads the manifest of a checkpoint folder, but not the listed files. CheckpointError if the manifest is missing or
// damaged, or if the folder is named after another step: such a copy would be taken for the wrong one.
Checkpoint read_manifest(const std::string& folder);
// Reads a file of the folder. CheckpointError naming file, expected and found size or hash.
void verify_file(const std::string& folder, const CheckpointFile& expected);
// Also verifies every file. CheckpointError naming file, expected and found size or hash.
Checkpoint open_checkpoint(const std::string& folder);

std::string checkpoint_root(const std::string& run_dir);  // where a run keeps its checkpoints

struct CheckpointStoreOptions {
  int keep_last = 2;                               // number of checkpoints to keep, the last saved ones; 0: all
  std::function<void(const std::string&)> warn{};  // receives warnings; empty: the log
};

class CheckpointStore {
 public:
  CheckpointStore(std::string root, CheckpointStoreOptions options);  // makes no folder and reads nothing yet

  // At the start, rank 0 only: removes incomplete folders of a killed run and finishes an interrupted replacement.
  void recover();

  // Rank 0: makes an empty folder for the files of this step. CheckpointError if it cannot.
  std::string begin(int64_t step);
  std::string partial_folder(int64_t step) const;
  // Rank 0: the checkpoints of these steps stay, beside those of keep_last, until others are protected.
  void protect(std::vector<int64_t> steps) { protected_steps_ = std::move(steps); }
  // Rank 0, after all files are closed: makes the checkpoint valid and the newest, then removes old ones. Checkpoints
  // whose manifest cannot be read stay: their age is unknown. On CheckpointError the partial folder is gone and the old
  // checkpoints are unchanged. `state` must hold no NaN or Inf: JSON has none.
  void commit(int64_t step, const std::string& model_fingerprint, const std::vector<CheckpointFile>& files,
              const nlohmann::json& state);
  void abandon(int64_t step) noexcept;  // Rank 0: removes the partial folder. Never throws.

  // Steps that have a folder under a valid name, highest first. Opens none of them.
  std::vector<int64_t> steps() const;
  // The last saved checkpoint with a readable manifest; errors of others go to `unreadable`. Reads no other file.
  std::optional<Checkpoint> last_saved(const std::function<void(const CheckpointError&)>& unreadable) const;
  // The last saved checkpoint with right hashes that `examine` accepts (else CheckpointError). Warns of others by file.
  std::optional<Checkpoint> latest_valid(const std::function<void(const Checkpoint&)>& examine = {}) const;
  std::string folder(int64_t step) const;

 private:
  // Checkpoints with a readable manifest, the last saved first; errors of the others go to `unreadable`.
  std::vector<Checkpoint> manifests(const std::function<void(const CheckpointError&)>& unreadable) const;
  void prune();
  void replace(int64_t step);

  std::string root_;
  CheckpointStoreOptions options_;
  std::vector<int64_t> protected_steps_;
};

}  // namespace mantissa
