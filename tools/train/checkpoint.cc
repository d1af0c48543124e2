#include "tools/train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "comm/sharded_state.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/config_binding.h"
#include "tools/config/precision_phases.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/state/optional_json.h"
#include "tools/run/state/run_folder.h"
#include "tools/train/checkpoint_files.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

// Before lanes were introduced, ranks were lanes.
int lanes_of(const Checkpoint& checkpoint) {
  return checkpoint.state.at(checkpoint.state.contains("lanes") ? "lanes" : "ranks");
}

// The settings that a checkpoint was trained with.
Config saved_config(const Checkpoint& checkpoint) {
  try {
    const std::string text = checkpoint.state.at("config");
    Config saved = parse_config(text, checkpoint.folder + "/" + kManifestName);
    saved.train.kept_lanes = lanes_of(checkpoint);
    return saved;
  } catch (const ConfigError& error) {  // of the checkpoint, not of this run
    throw CheckpointError(error.what());
  }
}

// The point of rollbacks in a run continued from this checkpoint: the checkpoint itself if another run saved it.
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
    require<CheckpointError>(version == kStateVersion, "{}: format version {}, this program reads {}",
                             checkpoint.folder, version, kStateVersion);
    require<CheckpointError>(
        !state.value(kWeightsOnly, false),
        "{} holds weights and no state of a training: give train.init_from={} to begin with them, and "
        "another train.run_dir",
        checkpoint.folder, checkpoint.folder);
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

// Whether the setting has its default, or no effect on any number of ranks.
bool is_idle(const std::string& setting, const Config& config) {
  auto values = flatten(config), defaults = flatten(Config());
  const auto is_named = [&](const IneffectiveSetting& found) {  // or its section is
    const bool is_of_phase = phase_count(config) > 1 && found.path.starts_with("precision.");
    return !is_of_phase && (setting + ".").starts_with(found.path + ".");
  };
  return values[setting] == defaults[setting] || std::ranges::any_of(ineffective_settings(config, {}), is_named);
}

bool have_same_beginning(const Config& saved, const Config& run) {
  return saved.train.init_from == run.train.init_from ||
         real_path(saved.train.init_from) == real_path(run.train.init_from);
}

// The training_differences() that need consent. Steering settings do not, nor settings that are idle before and after.
std::vector<std::string> shaping(std::vector<std::string> differences, const Config& saved, const Config& run) {
  const bool is_known =  // a plugin of the checkpoint is not loaded here
      saved.model.name == run.model.name && saved.model.plugin_digest == run.model.plugin_digest;
  std::erase_if(differences, [&](const std::string& difference) {
    const std::string setting = difference.substr(0, difference.find(": "));
    if (setting == "train.init_from") return have_same_beginning(saved, run);
    return steers_training(setting) || (is_known && is_idle(setting, saved) && is_idle(setting, run));
  });
  return differences;
}

// The changes that need no consent. Errors for others.
std::vector<std::string> accepted_changes(const Checkpoint& checkpoint, const Config& run) {
  const Config saved = saved_config(checkpoint);
  const auto differences = training_differences(saved, run);
  const auto others = shaping(differences, saved, run);
  std::vector<std::string> of_model = others;
  std::erase_if(of_model, [](const std::string& difference) { return !difference.starts_with("model."); });
  // The fingerprint in the manifest may be from a version that had fewer settings.
  require<CheckpointError>(of_model.empty() || model_fingerprint(saved) == model_fingerprint(run),
                           "{} is a checkpoint of another model:\n  {}\nGive the model section that it was trained "
                           "with, or another train.run_dir",
                           checkpoint.folder, fmt::join(of_model, "\n  "));
  // Consent would only have the run, and its exports, name weights that it never had.
  require<ConfigError>(
      have_same_beginning(saved, run),
      "train.init_from = '{}' has no effect: {} goes on with weights that began with '{}'; leave the setting as it "
      "was, train {}/config.yaml, or begin anew in another train.run_dir",
      run.train.init_from, checkpoint.folder, saved.train.init_from,
      std::filesystem::path(checkpoint.folder).parent_path().parent_path().string());
  require<ConfigError>(others.empty() || run.checkpoint.allow_changes,
                       "{} was trained with other settings (saved -> now):\n  {}\nGive the old ones, or "
                       "checkpoint.allow_changes=true to go on with the new ones",
                       checkpoint.folder, fmt::join(others, "\n  "));
  return differences;
}

// Runs `read`, which looks at the checkpoint, on this rank. DamagedCheckpoint on all ranks if one of them cannot.
// Collective.
template <typename Read>
void read_on_all_ranks(const std::string& folder, Communicator& communicator, const Read& read) {
  run_on_all<DamagedCheckpoint>(communicator, "", [&] {
    // Numbers that do not go together.
    with_place<CheckpointError, ContractError>(folder, [&] { read_state(folder, read); });
  });
}

void load_pieces(const Checkpoint& checkpoint, Session& session) {
  for (const CheckpointFile& file : checkpoint.files) {
    if (file.name.starts_with("optimizer-")) {
      load_optimizer_pieces(SafetensorsReader(checkpoint.folder + "/" + file.name), session.sharded);
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

class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::vector<std::byte>& out) : out_(out) {}
  void write(std::span<const std::byte> bytes) override { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

 private:
  std::vector<std::byte>& out_;
};

}  // namespace

std::optional<ResumePoint> find_resume_point(const Config& config, Communicator& communicator,
                                             const std::vector<std::string>& passed_over) {
  std::optional<Checkpoint> chosen;  // by rank 0 for all
  bool is_named = false;
  const auto examine = [&](const Checkpoint& checkpoint) {
    require<CheckpointError>(std::ranges::count(passed_over, checkpoint.folder) == 0,
                             "{}: it could not be resumed from", checkpoint.folder);
    examine_state(config, checkpoint);
  };
  if (communicator.rank() == 0) {
    CheckpointStore store(checkpoint_root(config.train.run_dir), {});
    const std::string choice = passed_over.empty() ? choose_beginning(config, store) : "auto";
    is_named = choice != "auto" && choice != "none";
    if (is_named) {
      chosen = open_checkpoint(find_checkpoint_folder(choice));
      examine(*chosen);
    } else if (choice == "auto") {
      store.recover();
      chosen = store.latest_valid(examine);
    }
    require<CheckpointError>(chosen || choice != "auto" || store.steps().empty(),
                             "{} holds {}, but no valid one; starting again would write over the run. Give "
                             "checkpoint.resume=none to start from the beginning, or another train.run_dir",
                             checkpoint_root(config.train.run_dir), counted(std::ssize(store.steps()), "checkpoint"));
  }
  return resume_point_on_all_ranks(config, chosen, communicator, is_named);
}

int find_kept_lanes(const Config& config, Communicator& communicator) {
  int lanes = 0;
  if (communicator.rank() == 0) {
    try {
      const CheckpointStore store(checkpoint_root(config.train.run_dir), {});
      const std::string choice = choose_beginning(config, store, /*tells=*/false);
      std::optional<Checkpoint> chosen;
      if (choice == "auto") chosen = store.last_saved([](const CheckpointError&) {});
      if (choice != "auto" && choice != "none") chosen = open_checkpoint(find_checkpoint_folder(choice));
      if (chosen) lanes = lanes_of(*chosen);
      const int64_t micro_batches = config.train.global_batch / config.train.micro_batch;
      if (lanes < 1 || micro_batches % lanes != 0) lanes = 0;  // another batch, or the manifest is damaged
    } catch (const std::exception&) {                          // find_resume_point() will say it
      lanes = 0;
    }
  }
  return all_gather_records(communicator, lanes)[0];
}

bool is_finished(const Config& run, const ConfigOrigins& origins, const ResumePoint& point, Communicator& communicator,
                 std::vector<std::string>& unused) {
  bool finished = false;
  if (communicator.rank() == 0 && point.step == run.train.last_step()) {
    const auto figures = read_metrics_prom(run.train.run_dir);
    const Config saved = saved_config(open_checkpoint(point.folder));
    unused = training_differences(saved, run);
    finished = is_own_checkpoint(point.folder, run) && figures && figures->progress == RunProgress::kDone &&
               shaping(unused, saved, run).empty();
    std::ranges::move(reporting_differences(saved, run, origins), std::back_inserter(unused));
  }
  return all_gather_records(communicator, int32_t{finished})[0] != 0;
}

void require_same_training(const Config& run, const ResumePoint& point, Communicator& communicator) {
  Checkpoint checkpoint;
  read_on_all_ranks(point.folder, communicator, [&] { checkpoint = open_checkpoint(point.folder); });
  accepted_changes(checkpoint, run);
}

ResumePoint find_rollback_point(const Config& config, const RollbackPoint& point, Communicator& communicator,
                                const std::vector<std::string>& passed_over) {
  std::optional<Checkpoint> chosen;  // by rank 0 for all
  if (communicator.rank() == 0) {
    const CheckpointStore store(checkpoint_root(config.train.run_dir), {});
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
        log_warn("skipping a checkpoint: {}", error.what());
      }
    }
    require<CheckpointError>(
        chosen.has_value(),
        "rollback: expected a checkpoint that was saved at checkpoint.interval, up to step {}, and found "
        "no valid one "
        "in {}. A new start continues from the newest valid checkpoint, if there is one",
        point.step, point.folder.empty() ? checkpoint_root(config.train.run_dir) : point.folder);
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
  const std::vector<std::string> changes = accepted_changes(checkpoint, run);
  if (!changes.empty()) log_info("resuming with changed settings (saved -> now):\n  {}", fmt::join(changes, "\n  "));
  const TrainingState training = training_state_from(checkpoint.state);
  session.sharded.optimizer.begin_load();
  session.sharded.reducer.clear_residuals();
  read_on_all_ranks(point.folder, communicator, [&] { load_pieces(checkpoint, session); });
  with_place<DamagedCheckpoint, CheckpointError>(  // on all ranks
      checkpoint.folder, [&] { session.sharded.optimizer.end_load(training.applied_steps); });
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
  if (lanes_of(checkpoint) != session.lanes()) {
    log_warn("the run had {} and has {} from here on: its bits are not those of a run that was never stopped",
             counted(lanes_of(checkpoint), "lane"), session.lanes());
  }
}

TrainingState state_of(const Session& session) {
  return {.next_step = session.next_step,
          .applied_steps = session.sharded.optimizer.applied_steps(),
          .scaler = session.scaler.state(),
          .gradient_prescale_log2 = gradient_prescale_log2(session.lanes(), session.micro_batches()),
          .clip_norms = session.clipper.state(),
          .spike_window = session.spikes.state(),
          .skipped_batches = session.skipped_batches};
}

void continue_from(const TrainingState& state, Session& session) {
  if (!session.scaler.load_state(state.scaler)) {
    log_info("the loss scaler was in mode '{}' and is in '{}' now: it starts afresh", name(state.scaler.mode),
             name(session.scaler.config().mode));
  }
  session.clipper.restore(state.clip_norms);
  session.spikes.restore(state.spike_window);
  session.skipped_batches = state.skipped_batches;
  session.next_step = state.next_step;
}

void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session) {
  session.runtime.delayed_scales->load_state(scales, state_of(session).gradient_factor() / state.gradient_factor());
}

HeldState::HeldState(Session& session) : numbers_(state_of(session)) {
  session.sharded.optimizer.restore_weights();
  if (const DelayedScales& scales = *session.runtime.delayed_scales; !scales.empty()) scales_ = scales.state();
  const auto hold = [&](std::vector<std::byte>& held, const std::vector<StatePiece>& pieces,
                        const std::vector<LaneResidual>& residuals) {
    MemorySink sink(held);
    write_optimizer_pieces(sink, pieces, residuals, *session.runtime.backend, *session.runtime.stream);
  };
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) hold(pieces_.emplace_back(), {piece}, {});
  const std::vector<LaneResidual> residuals = session.sharded.reducer.residuals();
  if (!residuals.empty()) hold(residuals_, {}, residuals);
}

void HeldState::hand_over(Session& session) const {
  Communicator& communicator = session.communicator;
  ShardedOptimizer& optimizer = session.sharded.optimizer;
  optimizer.begin_load();
  session.sharded.reducer.clear_residuals();
  if (!residuals_.empty()) {
    load_optimizer_pieces(SafetensorsReader("residuals that are handed over", residuals_), session.sharded);
  }
  const auto counts = all_gather_records(communicator, static_cast<uint64_t>(pieces_.size()));
  const size_t rounds = *std::max_element(counts.begin(), counts.end());
  for (size_t round = 0; round < rounds; ++round) {
    const auto mine =
        round < pieces_.size() ? std::span<const std::byte>(pieces_[round]) : std::span<const std::byte>();
    for (const std::vector<std::byte>& piece : all_gather_varied(communicator, mine)) {
      if (piece.empty()) continue;
      load_optimizer_pieces(SafetensorsReader("state that is handed over", piece), session.sharded);
    }
  }
  optimizer.end_load(numbers_.applied_steps);
  continue_from(numbers_, session);
  if (!session.runtime.delayed_scales->empty() && !scales_.names.empty()) continue_scales(numbers_, scales_, session);
}

}  // namespace mantissa
