#include "tools/train/checkpoint.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "comm/state_faults.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "core/io/optional_json.h"
#include "tools/guard/metrics_prom.h"
#include "tools/guard/resume_choice.h"
#include "tools/train/checkpoint_files.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

constexpr int kFormatVersion = 1;
constexpr const char* kScalesFile = "scales.safetensors";

void warn(const std::string& text) { log_warn("{}", text); }

// The settings that a checkpoint was trained with.
Config saved_config(const Checkpoint& checkpoint) {
  try {
    return parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/" + kManifestName);
  } catch (const ConfigError& error) {  // of the checkpoint, not of this run
    throw CheckpointError(error.what());
  }
}

// The checkpoint that a rollback returns to, in a run that goes on from this one: with one of another run it begins.
std::optional<RollbackPoint> rollback_point_of(const Config& run, const Checkpoint& checkpoint) {
  if (!is_own_checkpoint(checkpoint.folder, run)) {
    return RollbackPoint{.step = checkpoint.step, .folder = std::filesystem::absolute(checkpoint.folder).string()};
  }
  const auto saved = checkpoint.state.find("rollback_point");
  if (saved == checkpoint.state.end()) return RollbackPoint{.step = checkpoint.step};  // of an older version
  return saved->get<std::optional<RollbackPoint>>();
}

// CheckpointError if an entry of the manifest is missing, of another type or version, or a number that cannot be.
void examine_state(const Config& run, const Checkpoint& checkpoint) {
  read_state(checkpoint.folder, [&] {
    const nlohmann::json& state = checkpoint.state;
    const int version = state.at("format_version");
    if (version != kFormatVersion) {
      throw CheckpointError(
          fmt::format("{}: format version {}, this program reads {}", checkpoint.folder, version, kFormatVersion));
    }
    saved_config(checkpoint);
    if (const int64_t next = training_state_from(state).next_step; next != checkpoint.step) {
      throw DamagedEntry(fmt::format("'next_step' is damaged: expected {}, the step of the checkpoint, got {}",
                                     checkpoint.step, next));
    }
    state.at("data_fingerprint").get<uint64_t>();
    run_state_from(run, checkpoint.step, state.at("run"));
    rollback_point_of(run, checkpoint);
  });
}

// Those of training_differences() that need consent.
std::vector<std::string> shaping(std::vector<std::string> differences) {
  std::erase_if(differences, [](const std::string& difference) {
    return steers_training(std::string_view(difference).substr(0, difference.find(':')));
  });
  return differences;
}

void require_same_training(const Checkpoint& checkpoint, const Config& run) {
  const auto differences = training_differences(saved_config(checkpoint), run);
  const auto others = shaping(differences);
  if (checkpoint.model_fingerprint != model_fingerprint(run)) {
    std::vector<std::string> of_model = others;
    std::erase_if(of_model, [](const std::string& difference) { return !difference.starts_with("model."); });
    throw CheckpointError(
        fmt::format("{} is a checkpoint of another model:\n  {}\nGive the model section that it was trained "
                    "with, or another train.run_dir",
                    checkpoint.folder, fmt::join(of_model, "\n  ")));
  }
  if (!others.empty() && !run.checkpoint.allow_changes) {
    throw ConfigError(
        fmt::format("{} was trained with other settings (saved -> now):\n  {}\nGive the old ones, or "
                    "checkpoint.allow_changes=true to go on with the new ones",
                    checkpoint.folder, fmt::join(others, "\n  ")));
  }
  if (!differences.empty()) {
    log_info("resuming with changed settings (saved -> now):\n  {}", fmt::join(differences, "\n  "));
  }
}

// Runs `read`, which looks at the checkpoint, on this rank. DamagedCheckpoint on all ranks if one of them cannot.
// Collective.
template <typename Read>
void read_on_all_ranks(const std::string& folder, Communicator& communicator, const Read& read) {
  std::string mine;
  try {
    read_state(folder, read);
  } catch (const CheckpointError& error) {
    mine = error.what();
  } catch (const ContractError& error) {  // numbers that do not go together
    mine = fmt::format("{}: {}", folder, error.what());
  }
  const RankText error = first_text(communicator, mine);
  if (error.rank < 0) return;
  throw DamagedCheckpoint(communicator.size() > 1 ? fmt::format("{} (rank {})", error.text, error.rank) : error.text);
}

void load_pieces(const Checkpoint& checkpoint, Session& session) {
  for (const CheckpointFile& file : checkpoint.files) {
    if (file.name.starts_with("optimizer-")) {
      load_optimizer_pieces(SafetensorsReader(checkpoint.folder + "/" + file.name), session.runtime.parameters,
                            session.sharded.optimizer);
    }
  }
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

// Rank 0's choice, on all ranks. Collective.
std::optional<ResumePoint> resume_point_on_all_ranks(const Config& config, const std::optional<Checkpoint>& chosen,
                                                     Communicator& communicator, bool is_named = false) {
  const std::string folder = all_gather_texts(communicator, chosen ? chosen->folder : "")[0];
  const int64_t step = all_gather_records(communicator, chosen ? chosen->step : int64_t{0})[0];
  const bool named = all_gather_records(communicator, int32_t{is_named})[0] != 0;
  nlohmann::json run;
  if (chosen) {
    run = chosen->state.at("run");
    run["proven_step"] = chosen->state.value("proven_step", int64_t{-1});
    run["rollback_point"] = rollback_point_of(config, *chosen);
  }
  const std::string state = all_gather_texts(communicator, run.dump())[0];
  if (folder.empty()) return std::nullopt;
  return ResumePoint{.folder = folder, .step = step, .run = nlohmann::json::parse(state), .is_named = named};
}

struct PartReport {
  uint64_t ok = 0, bytes = 0;
};

}  // namespace

std::optional<ResumePoint> find_resume_point(const Config& config, Communicator& communicator,
                                             const std::vector<std::string>& passed_over) {
  std::optional<Checkpoint> chosen;  // by rank 0 for all
  bool is_named = false;
  const auto examine = [&](const Checkpoint& checkpoint) {
    if (std::ranges::find(passed_over, checkpoint.folder) != passed_over.end()) {
      throw CheckpointError(fmt::format("{}: it could not be resumed from", checkpoint.folder));
    }
    examine_state(config, checkpoint);
  };
  if (communicator.rank() == 0) {
    CheckpointStore store(checkpoint_root(config.train.run_dir), {.warn = warn});
    const std::string choice = passed_over.empty() ? choose_beginning(config, store) : "auto";
    is_named = choice != "auto" && choice != "none";
    if (is_named) {
      chosen = open_checkpoint(find_checkpoint_folder(choice));
      examine(*chosen);
    } else if (choice == "auto") {
      store.recover();
      chosen = store.latest_valid(examine);
    }
    if (!chosen && choice == "auto" && !store.steps().empty()) {
      throw CheckpointError(
          fmt::format("{} holds {}, but no valid one; starting again would write over the run. Give "
                      "checkpoint.resume=none to start from the beginning, or another train.run_dir",
                      checkpoint_root(config.train.run_dir), counted(std::ssize(store.steps()), "checkpoint")));
    }
  }
  return resume_point_on_all_ranks(config, chosen, communicator, is_named);
}

bool is_finished(const Config& run, const ConfigOrigins& origins, const ResumePoint& point, Communicator& communicator,
                 std::vector<std::string>& unused) {
  bool finished = false;
  if (communicator.rank() == 0 && point.step == run.train.last_step()) {
    const auto figures = text_of_file(run.train.run_dir + "/" + kMetricsPromName);
    const Config saved = saved_config(open_checkpoint(point.folder));
    unused = training_differences(saved, run);
    finished = is_own_checkpoint(point.folder, run) && figures &&
               parse_prometheus(*figures).progress == RunProgress::kDone && shaping(unused).empty();
    std::ranges::move(reporting_differences(saved, run, origins), std::back_inserter(unused));
  }
  return all_gather_records(communicator, int32_t{finished})[0] != 0;
}

ResumePoint find_rollback_point(const Config& config, const RollbackPoint& point, Communicator& communicator,
                                const std::vector<std::string>& passed_over) {
  std::optional<Checkpoint> chosen;  // by rank 0 for all
  if (communicator.rank() == 0) {
    const CheckpointStore store(checkpoint_root(config.train.run_dir), {.warn = warn});
    std::vector<std::string> candidates = {point.folder.empty() ? store.folder(point.step) : point.folder};
    for (const int64_t step : store.steps()) {
      if (step < point.step && point.folder.empty()) candidates.push_back(store.folder(step));
    }
    for (const std::string& folder : candidates) {
      if (chosen || std::ranges::count(passed_over, folder) > 0) continue;
      try {
        const Checkpoint checkpoint = open_checkpoint(folder);
        examine_state(config, checkpoint);
        const std::optional<RollbackPoint> its_own = rollback_point_of(config, checkpoint);
        if (its_own && its_own->step == checkpoint.step) chosen = checkpoint;  // else it was saved by an early stop
      } catch (const CheckpointError& error) {
        warn(fmt::format("skipping a checkpoint: {}", error.what()));
      }
    }
    if (!chosen) {
      throw CheckpointError(
          fmt::format("rollback: expected a checkpoint that was saved at checkpoint.interval, up to step {}, and found "
                      "no valid one "
                      "in {}. A new start continues from the newest valid checkpoint, if there is one",
                      point.step, point.folder.empty() ? checkpoint_root(config.train.run_dir) : point.folder));
    }
  }
  return resume_point_on_all_ranks(config, chosen, communicator).value();  // rank 0 has one
}

RunState run_state_of(const Config& run, const ResumePoint& point) {
  return read_state(point.folder, [&] { return run_state_from(run, point.step, point.run); });
}

void resume(Session& session, const Config& run, const ResumePoint& point) {
  Communicator& communicator = session.communicator;
  Checkpoint checkpoint;
  read_on_all_ranks(point.folder, communicator, [&] {
    checkpoint = open_checkpoint(point.folder);
    examine_state(run, checkpoint);
  });
  require_same_training(checkpoint, run);
  const TrainingState training = training_state_from(checkpoint.state);
  session.sharded.optimizer.begin_load();
  read_on_all_ranks(point.folder, communicator, [&] { load_pieces(checkpoint, session); });
  try {
    session.sharded.optimizer.end_load(training.applied_steps);
  } catch (const CheckpointError& error) {  // on all ranks
    throw DamagedCheckpoint(fmt::format("{}: {}", checkpoint.folder, error.what()));
  }
  if (has_state_faults(session.sharded)) {
    throw DamagedCheckpoint(fmt::format("{}: {}", checkpoint.folder, describe_state_faults(session.sharded)));
  }
  read_on_all_ranks(point.folder, communicator, [&] {
    continue_from(training, session);
    load_scales(checkpoint, training, session);
  });
  if (checkpoint.state.at("data_fingerprint") != session.batches->fingerprint()) {
    log_info("the data is not what the checkpoint was trained on: the order of samples changes from here");
  }
  log_info("resumed from {} at step {} (ranks that saved it: {})", checkpoint.folder, session.next_step,
           checkpoint.state.at("ranks").get<int>());
}

TrainingCheckpoints::TrainingCheckpoints(Session& session, const Config& run, RunFolder* folder)
    : session_(session),
      run_(run),
      folder_(folder),
      store_(checkpoint_root(run.train.run_dir), {.keep_last = run.checkpoint.keep_last, .warn = warn}) {
  if (session.communicator.rank() == 0) store_.recover();
}

bool TrainingCheckpoints::save(RunState& state) {
  Communicator& communicator = session_.communicator;
  const int64_t step = session_.next_step;
  if (has_state_faults(session_.sharded)) {
    if (communicator.rank() == 0) log_warn("checkpoint of step {} not saved: its state is not finite", step);
    return false;
  }
  // Damage that signals have begun to show is no state to return to.
  const bool is_good = !state.adaptive || !state.adaptive->options().rollback ||
                       state.adaptive->is_calm_since(step - run_.checkpoint.interval);
  const std::optional<RollbackPoint> point =
      is_due(run_.checkpoint.interval, step) && is_good ? RollbackPoint{.step = step} : state.rollback_point;
  session_.sharded.optimizer.restore_weights();
  uint64_t ok = 1;
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
    guarded([&] {
      if (folder_ != nullptr) folder_->ensure_held();
      store_.begin(step);
    });
  }
  if (all_gather_records(communicator, ok)[0] && ok) {
    std::vector<CheckpointFile> written;
    guarded([&] {
      written = write_files(store_.partial_folder(step));
      for (const CheckpointFile& file : written) {
        mine.insert(mine.end(), {file.name, std::to_string(file.size_bytes), file.xxh3_128});
      }
    });
    if (run_.checkpoint.verify && ok) {
      guarded([&] {
        for (const CheckpointFile& file : written) verify_file(store_.partial_folder(step), file);
      });
    }
  }
  const auto reports = all_gather_records(communicator, PartReport{.ok = ok, .bytes = part_bytes()});
  const auto all = all_gather_text_lists(communicator, mine);
  const auto failed = std::ranges::find(reports, 0u, &PartReport::ok);
  int32_t committed = failed == reports.end();
  std::vector<CheckpointFile> files;
  for (size_t rank = 0; rank < all.size() && committed; ++rank) {
    for (size_t i = 0; i < all[rank].size(); i += 3) {
      files.push_back({all[rank][i], std::stoull(all[rank][i + 1]), all[rank][i + 2]});
    }
  }
  if (communicator.rank() == 0) {
    std::string failure;
    if (!committed) {
      const auto rank = static_cast<size_t>(failed - reports.begin());
      failure = fmt::format(", rank {}: {}", rank, all[rank].at(0));
      store_.abandon(step);
    } else {
      try {
        std::vector<int64_t> kept = {state.proven_step};
        // Whatever stop_rules.action is: a later start may set it to rollback.
        if (point && point->folder.empty()) kept.push_back(point->step);
        store_.protect(std::move(kept));
        store_.commit(step, model_fingerprint(session_.config), files, manifest(state, point));
      } catch (const std::exception& error) {
        committed = 0;
        failure = fmt::format(": {}", error.what());
      }
    }
    if (!committed) {
      uint64_t bytes = 0;
      for (const PartReport& report : reports) bytes += report.bytes;
      log_warn(
          "checkpoint of step {} not saved{}{}. Training goes on; {}", step, failure,
          shortage_text(failure, bytes, run_.train.run_dir, store_.steps().size() > 1 ? run_.checkpoint.keep_last : 1),
          store_.steps().empty() ? "there is no older checkpoint" : "older checkpoints are untouched");
    }
  }
  if (all_gather_records(communicator, committed)[0] == 0) return false;
  state.rollback_point = point;
  return true;
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
  return files;
}

uint64_t TrainingCheckpoints::part_bytes() const {
  uint64_t bytes = optimizer_file_bytes(session_.sharded.optimizer);
  const ParameterSet& parameters = session_.runtime.parameters;
  for (int index = 0; index < parameters.size() && session_.communicator.rank() == 0; ++index) {
    bytes += parameters[index].weight.size_bytes();
  }
  return bytes;
}

nlohmann::json TrainingCheckpoints::manifest(const RunState& state, const std::optional<RollbackPoint>& point) const {
  nlohmann::json manifest = to_json(state_of(session_));
  manifest.update({{"format_version", kFormatVersion},
                   {"seed", session_.config.train.seed},
                   {"ranks", session_.ranks()},
                   {"data_fingerprint", session_.batches->fingerprint()},
                   {"config", to_yaml(run_)},
                   {kResumeEntry, run_.checkpoint.resume},
                   {"proven_step", state.proven_step},
                   {"rollback_point", point},
                   {"run", to_json(state)}});
  return manifest;
}

}  // namespace mantissa
