#include "tools/train/checkpoint.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "core/base/log.h"
#include "core/io/checkpoint_store.h"
#include "tools/train/checkpoint_files.h"

namespace mantissa {
namespace {

constexpr int kFormatVersion = 1;
constexpr const char* kScalesFile = "scales.safetensors";

void warn(const std::string& text) { log_warn("{}", text); }

void require_same_training(const Checkpoint& checkpoint, const Config& run) {
  const int version = checkpoint.state.at("format_version");
  if (version != kFormatVersion) {
    throw CheckpointError(
        fmt::format("{}: format version {}, this program reads {}", checkpoint.folder, version, kFormatVersion));
  }
  const Config saved =
      parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/" + kManifestName);
  const auto differences = training_differences(saved, run);
  if (checkpoint.model_fingerprint != model_fingerprint(run)) {
    throw CheckpointError(
        fmt::format("{} is a checkpoint of another model:\n  {}\nGive the model section that it was trained "
                    "with, or another train.run_dir",
                    checkpoint.folder, fmt::join(differences, "\n  ")));
  }
  if (differences.empty()) return;
  if (!run.checkpoint.allow_changes) {
    throw ConfigError(
        fmt::format("{} was trained with other settings (saved -> now):\n  {}\nGive the old ones, or "
                    "checkpoint.allow_changes=true to go on with the new ones",
                    checkpoint.folder, fmt::join(differences, "\n  ")));
  }
  log_info("resuming with changed settings (saved -> now):\n  {}", fmt::join(differences, "\n  "));
}

void load_optimizer(const Checkpoint& checkpoint, int64_t applied_steps, Session& session) {
  session.sharded.optimizer.begin_load();
  for (const CheckpointFile& file : checkpoint.files) {
    if (file.name.starts_with("optimizer-")) {
      load_optimizer_pieces(SafetensorsReader(checkpoint.folder + "/" + file.name), session.runtime.parameters,
                            session.sharded.optimizer);
    }
  }
  session.sharded.optimizer.end_load(applied_steps);
}

void load_scales(const Checkpoint& checkpoint, const TrainingState& training, Session& session) {
  const DelayedScales& scales = *session.runtime.delayed_scales;
  if (scales.empty()) return;
  for (const CheckpointFile& file : checkpoint.files) {
    if (file.name != kScalesFile) continue;
    continue_scales(training, read_scales_file(checkpoint.folder + "/" + file.name), session);
  }
  if (!scales.calibrated()) {
    log_info(
        "the checkpoint has no amaxes for some tensors that delayed scaling is new to: the next batch gives the first");
  }
}

}  // namespace

std::string find_checkpoint_folder(const std::string& path) {
  std::error_code error;  // what cannot be looked into holds no checkpoint
  if (std::filesystem::exists(path + "/" + kManifestName, error)) return path;
  for (const std::string& root : {checkpoint_root(path), path}) {
    const CheckpointStore store(root, {.warn = warn});
    if (store.steps().empty()) continue;
    if (const auto latest = store.latest_valid()) return latest->folder;
    throw CheckpointError(fmt::format("{}: none of the {} checkpoints there is valid", root, store.steps().size()));
  }
  throw CheckpointError(
      fmt::format("'{}' holds no checkpoint: expected a checkpoint folder (with {} in it), a run folder or its "
                  "checkpoints folder",
                  path, kManifestName));
}

std::optional<ResumePoint> find_resume_point(const Config& config, Communicator& communicator) {
  const std::string& choice = config.checkpoint.resume;
  if (choice == "none") return std::nullopt;
  std::string folder;  // that rank 0 chooses for all; empty: none
  int64_t step = 0;
  const auto choose = [&](const Checkpoint& checkpoint) {
    folder = checkpoint.folder;
    step = checkpoint.step;
  };
  if (communicator.rank() == 0) {
    CheckpointStore store(checkpoint_root(config.train.run_dir), {.warn = warn});
    if (choice != "auto") {
      choose(open_checkpoint(find_checkpoint_folder(choice)));
    } else if (store.recover(); const auto latest = store.latest_valid()) {
      choose(*latest);
    } else if (!store.steps().empty()) {
      throw CheckpointError(fmt::format(
          "{}: none of the {} checkpoints there is valid, and starting again would write over the run. Give "
          "checkpoint.resume=none to start from the beginning, or another train.run_dir",
          checkpoint_root(config.train.run_dir), store.steps().size()));
    }
  }
  folder = all_gather_texts(communicator, folder)[0];
  step = all_gather_records(communicator, step)[0];
  if (folder.empty()) return std::nullopt;
  return read_state(folder, [&] {
    return ResumePoint{.folder = folder, .step = step, .run = read_manifest(folder).state.at("run")};
  });
}

RunState run_state_of(const Config& run, const ResumePoint& point) {
  return read_state(point.folder, [&] { return run_state_from(run, point.step, point.run); });
}

void resume(Session& session, const Config& run, const ResumePoint& point) {
  const Checkpoint checkpoint = open_checkpoint(point.folder);
  read_state(point.folder, [&] {
    require_same_training(checkpoint, run);
    const nlohmann::json& state = checkpoint.state;
    const TrainingState training = training_state_from(state);
    load_optimizer(checkpoint, training.applied_steps, session);
    continue_from(training, session);
    load_scales(checkpoint, training, session);
    if (state.at("data_fingerprint") != session.batches->fingerprint()) {
      log_info("the data is not what the checkpoint was trained on: the order of samples changes from here");
    }
    log_info("resumed from {} at step {} (ranks that saved it: {})", checkpoint.folder, session.next_step,
             state.at("ranks").get<int>());
  });
}

TrainingCheckpoints::TrainingCheckpoints(Session& session, const Config& run)
    : session_(session),
      run_(run),
      store_(checkpoint_root(run.train.run_dir), {.keep_last = run.checkpoint.keep_last, .warn = warn}) {
  if (session.communicator.rank() == 0) store_.recover();
}

bool TrainingCheckpoints::save(const RunState& state) {
  Communicator& communicator = session_.communicator;
  const int64_t step = session_.next_step;
  session_.sharded.optimizer.restore_weights();
  int32_t ok = 1;
  std::vector<std::string> mine;  // name, size and hash of each file that this rank has written; else the error
  const auto guarded = [&](const auto& write) {
    try {
      write();
    } catch (const std::exception& error) {
      ok = 0;
      mine = {error.what()};
    }
  };
  if (communicator.rank() == 0) {
    if (std::error_code error; !std::filesystem::exists(run_.train.run_dir, error)) {
      log_warn("train.run_dir: somebody removed '{}' during the run; it is made again for the checkpoint of step {}",
               run_.train.run_dir, step);
      log_warn("older checkpoints are lost, metrics until the next start: use another folder if a job uses it now");
    }
    guarded([&] { store_.begin(step); });
  }
  const auto begun = all_gather_records(communicator, ok);
  if (begun[0] && ok) {
    guarded([&] {
      for (const CheckpointFile& file : write_files(store_.partial_folder(step))) {
        mine.insert(mine.end(), {file.name, std::to_string(file.size_bytes), file.xxh3_128});
      }
    });
  }
  const auto all_ok = all_gather_records(communicator, ok);
  const auto all = all_gather_text_lists(communicator, mine);
  int32_t committed = 1;
  std::vector<CheckpointFile> files;
  for (size_t rank = 0; rank < all.size() && committed; ++rank) {
    committed = all_ok[rank];
    if (!committed && communicator.rank() == 0) {
      log_warn("checkpoint of step {} not saved, rank {}: {}. Training goes on; older checkpoints are untouched", step,
               rank, all[rank].at(0));
    }
    for (size_t i = 0; committed && i < all[rank].size(); i += 3) {
      files.push_back({all[rank][i], std::stoull(all[rank][i + 1]), all[rank][i + 2]});
    }
  }
  if (communicator.rank() == 0) {
    if (!committed) {
      store_.abandon(step);
    } else {
      try {
        store_.commit(step, model_fingerprint(session_.config), files, manifest(state));
      } catch (const std::exception& error) {
        committed = 0;
        log_warn("checkpoint of step {} not saved: {}. Training goes on; older checkpoints are untouched", step,
                 error.what());
      }
    }
  }
  return all_gather_records(communicator, committed)[0] != 0;
}

std::vector<CheckpointFile> TrainingCheckpoints::write_files(const std::string& folder) const {
  const int rank = session_.communicator.rank(), ranks = session_.ranks();
  std::vector<CheckpointFile> files;
  files.push_back(write_optimizer_file(folder, fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, ranks),
                                       session_.sharded.optimizer, *session_.runtime.backend,
                                       *session_.runtime.stream));
  if (rank == 0) {
    files.push_back(write_model_file(folder, kModelFile, session_.runtime.parameters, *session_.runtime.backend,
                                     *session_.runtime.stream));
    const DelayedScales& scales = *session_.runtime.delayed_scales;
    if (!scales.empty()) files.push_back(write_scales_file(folder, kScalesFile, scales));
  }
  if (run_.checkpoint.verify) {
    for (const CheckpointFile& file : files) verify_file(folder, file);
  }
  return files;
}

nlohmann::json TrainingCheckpoints::manifest(const RunState& state) const {
  nlohmann::json manifest = to_json(state_of(session_));
  manifest.update({{"format_version", kFormatVersion},
                   {"seed", session_.config.train.seed},
                   {"ranks", session_.ranks()},
                   {"data_fingerprint", session_.batches->fingerprint()},
                   {"config", to_yaml(run_)},
                   {"run", to_json(state)}});
  return manifest;
}

}  // namespace mantissa
