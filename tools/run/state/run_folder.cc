#include "tools/run/state/run_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/data_paths.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw ConfigError("train.run_dir: cannot write to folder '{}' ({}): give a folder that can be written", path, reason);
}

// Behind a link there may be the checkpoints of another run, which this run would take for its own, and remove. Where
// there can be no checkpoint, a training would lose its end.
void refuse_folders(const std::string& run_dir) {
  const std::string checkpoints = checkpoint_root(run_dir);
  if (access(checkpoints.c_str(), F_OK) == 0 && access((checkpoints + "/").c_str(), W_OK | X_OK) != 0) {
    fail(checkpoints, std::generic_category().message(errno));
  }
  for (const std::string& folder : {checkpoint_root(run_dir), run_dir + kBlackBoxFolder, run_dir + kWatchdogFolder,
                                    run_dir + "/" + kCarriedFolder}) {
    std::error_code error;  // then it is no link
    const fs::path target = fs::read_symlink(folder, error);
    require<ConfigError>(error.value() != 0,
                         "train.run_dir: '{}' is a symbolic link to '{}', and a run writes only in its own folder; "
                         "remove the link. train.run_dir may be on another disk, or a link itself",
                         folder, target.string());
  }
}

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

std::string program() { return shell_word(program_invocation_name); }

std::string launcher(int ranks) {
  if (ranks == 1) return "";
  if (!slurm_job().empty()) return fmt::format("srun -n {} ", ranks);
  // OpenMPI's mpirun refuses root otherwise.
  return fmt::format("mpirun -np {} {}", ranks, geteuid() == 0 ? "--allow-run-as-root " : "");
}

bool is_at(const std::string& path, int descriptor) {
  struct stat mine {
  }, there{};
  if (descriptor < 0 || fstat(descriptor, &mine) != 0 || stat(path.c_str(), &there) != 0) return false;
  return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

bool stops_early(const Config& run) { return run.train.last_step() < run.train.steps; }

}  // namespace

void RunFolder::hold() {
  std::error_code error;
  require<ConfigError>(!file_exists(path_ + "/config.json"),
                       "train.run_dir: '{}' holds another program's model (config.json): give another folder", path_);
  fs::create_directories(path_, error);
  if (error) fail(path_, error.message());
  refuse_folders(path_);
  const std::string lock = path_ + "/" + kLockName, obstacle = why_not_to_write(lock);
  if (!obstacle.empty()) fail(path_, fmt::format("its {}: {}", kLockName, obstacle));
  folder_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // open, its inode is not given to another folder
  lock_ = open(lock.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (folder_ < 0 || lock_ < 0) {
    const int reason = errno;
    release();
    fail(path_, std::generic_category().message(reason));
  }
  bool is_held = true;
  // `mantissa status` holds the lock for a moment, too.
  for (int attempt = 0; is_held && attempt < 5; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_held = flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (is_held) {
    const std::string holder = legible(text_of_file(lock).value_or("").substr(0, 200));
    release();
    throw ConfigError(
        "train.run_dir: another job is running in '{}'{}: wait for it, or give another folder. `mantissa "
        "status {}` shows how far it is",
        path_, holder.empty() ? "" : " (" + holder + ")", path_);
  }
  struct stat before {};
  if (time_ == 0.0 && fstat(lock_, &before) == 0) {
    time_ = static_cast<double>(before.st_mtim.tv_sec) + 1e-9 * static_cast<double>(before.st_mtim.tv_nsec);
  }
  // Whoever is refused reads it; its time is that of this start, for `mantissa status`. On a full disk it stays empty.
  const std::string job = slurm_job(), me = fmt::format("host {}, process {}{}{}", host_name(), getpid(),
                                                        job.empty() ? "" : ", Slurm job ", job);
  [[maybe_unused]] const bool is_told = ::ftruncate(lock_, 0) == 0 && ::write(lock_, me.data(), me.size()) > 0;
}

void RunFolder::begin(double time) {
  time_ = time;
  const auto seconds = static_cast<time_t>(time);
  const auto rest = static_cast<long>((time - static_cast<double>(seconds)) * 1e9);
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = seconds, .tv_nsec = rest}};
  futimens(lock_, times);
}

void RunFolder::release() {
  for (int* const descriptor : {&folder_, &lock_}) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
  }
}

void RunFolder::ensure_held() {
  const std::string lock = path_ + "/" + kLockName;
  const bool has_folder = is_at(path_, folder_);
  if (has_folder && is_at(lock, lock_)) {
    try {
      return refuse_folders(path_);
    } catch (const ConfigError& error) {  // of a training that goes on
      throw CheckpointError("{}", error.what());
    }
  }
  release();
  const std::string lost = has_folder
                               ? fmt::format("somebody removed '{}' during the run", lock)
                               : fmt::format("somebody removed '{}' during the run, with its checkpoints", path_);
  // Even if that job has ended: its checkpoints would be taken for this run's.
  const bool is_used =
      has_folder ? fs::exists(lock) : fs::exists(path_ + "/config.yaml") || fs::exists(checkpoint_root(path_));
  require<CheckpointError>(!is_used, "{}, and another job has begun there", lost);
  try {
    hold();
    begin(time_);
    if (!config_.empty()) write_config_text();
  } catch (const ConfigError& error) {
    throw CheckpointError("{}: {}", lost, error.what());
  }
  if (has_folder) return log_warn("train.run_dir: {}; it is made again. Only a lock keeps other jobs out", lost);
  log_warn("train.run_dir: somebody removed '{}' during the run; this run goes on in a new folder of that name", path_);
  log_warn("older checkpoints are lost; so are, until the next start, metrics.jsonl, run.log and the black boxes");
}

void RunFolder::write_config(const Config& config) {
  config_ = to_yaml(as_kept(config));
  write_config_text();
}

void RunFolder::write_config_text() const {
  if (const int error = replace_file(path_ + "/config.yaml", config_); error != 0) {
    fail(path_, std::generic_category().message(error));
  }
}

// ---- The checkpoint that a path names, and how a start begins

void warn_in_lines(const std::string& text) {
  constexpr size_t kLevelAndRank = std::string_view("warning: [rank 0] ").size();
  log_common_warning("{}", wrapped(text, kLevelAndRank, Paths::kPassOver));
}

std::string find_checkpoint_folder(const std::string& path) {
  for (const std::string& folder : {path, checkpoint_root(path)}) require_readable(folder);
  std::error_code error;  // what is missing holds no checkpoint
  if (file_exists(path + "/" + kManifestName)) {
    static std::atomic_flag is_told;  // a verb looks several times
    const std::string run = fs::weakly_canonical(path, error).parent_path().parent_path().string();
    if (!file_exists(run + "/config.yaml") && carried_folder(path).empty() && !is_told.test_and_set()) {
      log_warn("{}: the folder of its run, with tokenizer, chat template and positions, is missing: expected {}", path,
               run + "/config.yaml");
    }
    return path;
  }
  for (const std::string& root : {checkpoint_root(path), path}) {
    const CheckpointStore store(root, {});
    if (store.steps().empty()) continue;
    if (const auto latest = store.latest_valid()) return latest->folder;
    throw CheckpointError("{} holds {}, but no valid one", root, counted(std::ssize(store.steps()), "checkpoint"));
  }
  refuse_foreign_model(path);
  throw CheckpointError(
      "'{}' holds no checkpoint: expected a checkpoint folder (with {} in it), a run folder or its checkpoints folder",
      path, kManifestName);
}

bool is_own_checkpoint(const std::string& folder, const Config& run) {
  fs::path path = fs::absolute(folder);
  if (!path.has_filename()) path = path.parent_path();  // a slash at its end
  std::error_code error;                                // no checkpoint was saved here yet
  return fs::equivalent(path.parent_path(), checkpoint_root(run.train.run_dir), error);
}

std::string choose_beginning(const Config& run, const CheckpointStore& store, bool tells) {
  const std::string& choice = run.checkpoint.resume;
  if (choice == "auto" || store.steps().empty()) return choice;
  if (!goes_back(run)) {
    if (!tells) return "auto";
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
  if (tells && (!newest || !fs::equivalent(newest->folder, choice, error))) warn_of_going_back(run, store);
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

// ---- Commands to give after a run

std::string shell_word(const std::string& text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=:,@%";
  if (!text.empty() && text.find_first_not_of(kSafe) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string next_commands(const Config& run, int ranks) {
  const std::string folder = shell_word(run.train.run_dir), config = shell_word(run.train.run_dir + "/config.yaml");
  const bool is_text =
      run.data.format == DataFormat::kBytes || fs::exists(run.train.run_dir + "/huggingface/tokenizer.json");
  const char* const prompt = is_text ? "The " : "464 2159";
  std::string text;
  if (run.model.name != "encoder")
    text = fmt::format("to generate: {} generate {} --prompt \"{}\"\n", program(), folder, prompt);
  text += fmt::format("to analyze:  {} analyze model {}\n", program(), folder);
  const std::string longer =
      stops_early(run) ? "train.stop_at_step=0" : fmt::format("train.steps={}", 2 * run.train.steps);
  return text + fmt::format("to continue: {}{} train {} {}", launcher(ranks), program(), config, longer);
}

std::string finished_text(const Config& run, const ConfigOrigins& origins) {
  if (!stops_early(run)) {
    return fmt::format("already finished: {} of {} in {}; give a larger train.steps to go on", run.train.steps,
                       counted(run.train.steps, "step"), run.train.run_dir);
  }
  const auto origin = origins.find("train.stop_at_step");
  return fmt::format(
      "already finished: {0} of {1} in {2}, because train.stop_at_step = {0}{3}; give a larger one, or 0, to go on",
      run.train.last_step(), counted(run.train.steps, "step"), run.train.run_dir,
      origin == origins.end() ? "" : fmt::format(" ({})", origin->second));
}

}  // namespace mantissa
