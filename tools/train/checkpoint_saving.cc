#include <algorithm>

#include "comm/sharded_state.h"
#include "core/base/log.h"
#include "tools/run/state/optional_json.h"
#include "tools/run/state/run_folder.h"
#include "tools/train/checkpoint.h"
#include "tools/train/checkpoint_files.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

// A rank's part of a checkpoint.
struct Part {
  uint64_t ok = 1;
  std::vector<std::string> texts{};  // name, size and hash of each file that the rank has written; else the error

  void attempt(const auto& write) {
    try {
      write();
    } catch (const std::exception& error) {
      ok = 0;
      texts = {error.what()};
    }
  }
};
struct PartReport {
  uint64_t ok = 0, bytes = 0;
};

}  // namespace

TrainingCheckpoints::TrainingCheckpoints(Session& session, const Config& run, RunFolder* folder)
    : session_(session),
      run_(run),
      folder_(folder),
      store_(checkpoint_root(run.train.run_dir), {.keep_last = run.checkpoint.keep_last}) {
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
  Part mine;
  if (communicator.rank() == 0) {
    mine.attempt([&] {
      if (folder_ != nullptr) folder_->ensure_held();
      store_.begin(step);
    });
  }
  if (all_gather_records(communicator, mine.ok)[0] && mine.ok) {
    mine.attempt([&] {
      const std::string folder = store_.partial_folder(step);
      for (const CheckpointFile& file : write_files(folder)) {
        mine.texts.insert(mine.texts.end(), {file.name, std::to_string(file.size_bytes), file.xxh3_128});
        if (run_.checkpoint.verify) verify_file(folder, file);
      }
    });
  }
  const auto reports = all_gather_records(communicator, PartReport{.ok = mine.ok, .bytes = part_bytes()});
  const auto texts = all_gather_text_lists(communicator, mine.texts);
  int32_t committed = 0;
  if (communicator.rank() == 0) {
    std::string failure;
    if (const auto failed = std::ranges::find(reports, 0u, &PartReport::ok); failed != reports.end()) {
      const auto rank = static_cast<size_t>(failed - reports.begin());
      failure = fmt::format(", rank {}: {}", rank, texts[rank].at(0));
      store_.abandon(step);
    } else {
      failure = commit(texts, state, point);
    }
    committed = failure.empty();
    if (!committed) {
      uint64_t bytes = 0;
      for (const PartReport& report : reports) bytes += report.bytes;
      log_warn("checkpoint of step {} not saved{}. Training goes on; {}", step,
               failure + shortage_text(failure, bytes, run_.train.run_dir,
                                       store_.steps().size() > 1 ? run_.checkpoint.keep_last : 1),
               store_.steps().empty() ? "there is no older checkpoint" : "older checkpoints are untouched");
    }
  }
  if (all_gather_records(communicator, committed)[0] == 0) return false;
  state.rollback_point = point;
  return true;
}

std::string TrainingCheckpoints::commit(const std::vector<std::vector<std::string>>& texts, const RunState& state,
                                        const std::optional<RollbackPoint>& point) {
  std::vector<CheckpointFile> files;
  for (const std::vector<std::string>& of_rank : texts) {
    for (size_t i = 0; i < of_rank.size(); i += 3) {
      files.push_back({of_rank[i], std::stoull(of_rank[i + 1]), of_rank[i + 2]});
    }
  }
  try {
    std::vector<int64_t> kept = {state.proven_step};
    // Whatever stop_rules.action is: a later start may set it to rollback.
    if (point && point->folder.empty()) kept.push_back(point->step);
    store_.protect(std::move(kept));
    store_.commit(session_.next_step, model_fingerprint(session_.config), files, manifest(state, point));
  } catch (const std::exception& error) {
    return fmt::format(": {}", error.what());
  }
  return "";
}

std::vector<CheckpointFile> TrainingCheckpoints::write_files(const std::string& folder) const {
  const int rank = session_.communicator.rank(), ranks = session_.ranks();
  std::vector<CheckpointFile> files;
  CheckpointFileWriter file(folder, fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, ranks));
  write_optimizer_pieces(file, session_.sharded.optimizer.pieces(), session_.sharded.reducer.residuals(),
                         *session_.runtime.backend, *session_.runtime.stream);
  files.push_back(file.close());
  if (rank == 0) {
    files.push_back(write_model_file(folder, kModelFile, session_.runtime.parameters, *session_.runtime.backend,
                                     *session_.runtime.stream));
    const DelayedScales& scales = *session_.runtime.delayed_scales;
    if (!scales.empty()) files.push_back(write_scales_file(folder, kScalesFile, scales));
  }
  return files;
}

uint64_t TrainingCheckpoints::part_bytes() const {
  uint64_t bytes = optimizer_file_bytes(session_.sharded);
  const ParameterSet& parameters = session_.runtime.parameters;
  for (int index = 0; index < parameters.size() && session_.communicator.rank() == 0; ++index) {
    if (parameters[index].is_trainable) bytes += parameters[index].weight.size_bytes();
  }
  return bytes;
}

nlohmann::json TrainingCheckpoints::manifest(const RunState& state, const std::optional<RollbackPoint>& point) const {
  nlohmann::json manifest = to_json(state_of(session_));
  manifest.update({{"format_version", kStateVersion},
                   {"seed", session_.config.train.seed},
                   {"ranks", session_.ranks()},
                   {"lanes", session_.lanes()},
                   {"data_fingerprint", session_.batches->fingerprint()},
                   {"config", to_yaml(run_)},
                   {kResumeEntry, run_.checkpoint.resume},
                   {"proven_step", state.proven_step},
                   {"rollback_point", point},
                   {"run", to_json(state)}});
  return manifest;
}

}  // namespace mantissa
