#include "tools/run/state/resume_choice.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "tools/config/data_paths.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

bool goes_back(const Config& run) {
  return run.checkpoint.resume == "none" || is_own_checkpoint(run.checkpoint.resume, run);
}

// Whether Slurm or tools/supervise has started the job before: both give the same command line once more.
bool is_restarted_job() {
  const std::string by_slurm = environment_variable("SLURM_RESTART_COUNT");
  return (!by_slurm.empty() && by_slurm != "0") || !environment_variable("MANTISSA_RESTARTED").empty();
}

void warn_of_going_back(const Config& run, const CheckpointStore& store) {
  const std::string& choice = run.checkpoint.resume;
  const int keep_last = run.checkpoint.keep_last;
  const std::string fate = keep_last == 0
                               ? "They stay, but one is replaced where this training reaches its step"
                               : fmt::format("They are removed once this training has saved {} of its own", keep_last);
  warn_in_lines(fmt::format(
      "checkpoint.resume = {}: training {}, and not from the newest of the checkpoints in {} (steps {}). {} "
      "(checkpoint.keep_last = {}); to keep them, give another train.run_dir",
      choice, choice == "none" ? "begins anew" : "goes on from there", checkpoint_root(run.train.run_dir),
      fmt::join(store.steps(), ", "), fate, keep_last));
}

}  // namespace

void warn_in_lines(const std::string& text) {
  constexpr size_t kLevelAndRank = std::string_view("warning: [rank 0] ").size();
  log_warn("{}", wrapped(text, kLevelAndRank, Paths::kPassOver));
}

std::string find_checkpoint_folder(const std::string& path) {
  std::error_code error;  // what cannot be looked into holds no checkpoint
  if (std::filesystem::exists(path + "/" + kManifestName, error)) return path;
  for (const std::string& root : {checkpoint_root(path), path}) {
    const CheckpointStore store(root, {.warn = [](const std::string& text) { log_warn("{}", text); }});
    if (store.steps().empty()) continue;
    if (const auto latest = store.latest_valid()) return latest->folder;
    throw CheckpointError(
        fmt::format("{} holds {}, but no valid one", root, counted(std::ssize(store.steps()), "checkpoint")));
  }
  refuse_foreign_model(path);
  throw CheckpointError(
      fmt::format("'{}' holds no checkpoint: expected a checkpoint folder (with {} in it), a run folder or its "
                  "checkpoints folder",
                  path, kManifestName));
}

bool is_own_checkpoint(const std::string& folder, const Config& run) {
  fs::path path = fs::absolute(folder);
  if (!path.has_filename()) path = path.parent_path();  // a slash at its end
  std::error_code error;                                // no checkpoint was saved here yet
  return fs::equivalent(path.parent_path(), checkpoint_root(run.train.run_dir), error);
}

std::string choose_beginning(const Config& run, const CheckpointStore& store) {
  const std::string& choice = run.checkpoint.resume;
  if (choice == "auto" || store.steps().empty()) return choice;
  if (!goes_back(run)) {
    log_info("{}",
             wrapped(fmt::format("checkpoint.resume = {} is not used: the run has checkpoints of its own, and goes "
                                 "on from the newest. To begin there, give another train.run_dir",
                                 choice)));
    return "auto";
  }
  const auto newest = store.last_saved([](const CheckpointError&) {});
  // The first start of the job may have ended before it saved anything: then it is still to begin.
  if (newest && is_restarted_job() && newest->state.value(kResumeEntry, "") == choice) return "auto";
  std::error_code error;  // then it is another one
  if (!newest || !fs::equivalent(newest->folder, choice, error)) warn_of_going_back(run, store);
  return choice;
}

Config as_kept(Config run) {
  if (goes_back(run)) run.checkpoint.resume = "auto";
  return run;
}

void warn_of_lost_steps(const Config& run) {
  const auto figures = read_metrics_prom(run.train.run_dir);
  const double steps = figures ? (*figures)["step"].value_or(0.0) : 0.0;
  if (!(steps > 0.0) || run.checkpoint.resume != "auto") return;
  warn_in_lines(
      fmt::format("{} has done {} by {}, but holds no checkpoint: training begins anew, and metrics.jsonl becomes "
                  "metrics.jsonl.previous",
                  run.train.run_dir, counted(static_cast<int64_t>(steps), "step"), kMetricsPromName));
}

}  // namespace mantissa
