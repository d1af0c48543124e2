#include "tools/train/training.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/io/files.h"
#include "core/profile/range.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/guard/heartbeat.h"
#include "tools/guard/watchdog.h"
#include "tools/guard/watched_communicator.h"
#include "tools/train/dry_run.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/launch.h"
#include "tools/train/precision_table.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/run_log.h"
#include "tools/train/run_profile.h"
#include "tools/train/run_state.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw ConfigError(
      fmt::format("train.run_dir: cannot write to folder '{}' ({}): give a folder that can be written", path, reason));
}

// The folder of a run, held by one job at a time. Rank 0 only.
class RunFolder {
 public:
  // Makes the folder and locks it until the object goes. ConfigError when it cannot be written, or another job holds
  // it.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Replaces config.yaml by the resolved settings, at once: a reader sees the old file or the new one.
  void write_config(const Config& config) const;

 private:
  std::string path_;
  int lock_ = -1;
};

RunFolder::RunFolder(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, error.message());
  lock_ = open((path + "/" + kLockName).c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (lock_ < 0) fail(path, std::generic_category().message(errno));
  bool is_held = true;
  // `mantissa status` holds the lock for a moment, too.
  for (int attempt = 0; is_held && attempt < 5; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_held = flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (is_held) {
    close(lock_);
    throw ConfigError(
        fmt::format("train.run_dir: another job is running in '{}': wait for it, or give another folder", path));
  }
  futimens(lock_, nullptr);  // the time of this start, for `mantissa status`
}

RunFolder::~RunFolder() { close(lock_); }

void RunFolder::write_config(const Config& config) const {
  if (const int error = replace_file(path_ + "/config.yaml", to_yaml(config)); error != 0) {
    fail(path_, std::generic_category().message(error));
  }
}

// State that one session hands to the next.
struct Handover {
  HeldState held;
  PrecisionSwitch why;
  std::shared_ptr<const Batches> batches;  // open files: they are still there, and still the same
};

// Adds the settings that differ between two phases to the trainer's own reasons.
PrecisionSwitch with_changes(const Config& run, int before, int after, PrecisionSwitch why) {
  const std::vector<std::string> changes = training_differences(in_phase(run, before), in_phase(run, after));
  why.changes.insert(why.changes.end(), changes.begin(), changes.end());
  return why;
}

// Trains in one precision, from step `begin`, to the end of the run or to a session that continues it.
std::variant<Handover, Ending> train_session(const Config& run, int64_t begin, RunState& state, const Handover* before,
                                             const ResumePoint* checkpoint, const TrainingHooks& hooks,
                                             Communicator& communicator) {
  const int phase = phase_of(run, begin, state);
  const Config config = with_lifts(in_phase(run, phase), state.fallback);
  SessionParts parts;
  if (before != nullptr) parts.batches = [before](const Config&, Objective) { return before->batches; };
  Session session(config, communicator, std::move(parts));
  std::optional<Trainer> trainer;
  try {
    if (before != nullptr) before->held.hand_over(session);
    if (checkpoint != nullptr) resume(session, run, *checkpoint);
    TrainObservers observers = {std::make_shared<PrecisionControl>(checkpoint != nullptr ? begin : -1)};
    const SessionStart start{.by_switch = before != nullptr ? &before->why : nullptr, .resumed = checkpoint != nullptr};
    RunProbe* const probe = hooks.begin(session, state, start, observers);
    trainer.emplace(session, state, std::move(observers), probe, hooks.stop);
    const int64_t last = run.train.last_step(), end = std::min(phase_end(run, phase), last);
    std::optional<PrecisionSwitch> why = trainer->run(end);
    if (trainer->stopped_by() || session.next_step >= last) {
      const Ending ending = trainer->stopped_by() ? Ending::kStopped : Ending::kDone;
      trainer->finish(ending);
      return ending;
    }
    trainer->leave();
    const int next = phase_of(run, session.next_step, state);
    if (!why) why = PrecisionSwitch{.cause = phase_path(run, next)};
    if (next != phase) why = with_changes(run, phase, next, std::move(*why));
    return Handover{.held = HeldState(session), .why = std::move(*why), .batches = session.batches};
  } catch (const std::exception& error) {
    hooks.on_error(error);
    throw;
  }
}

}  // namespace

Ending train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
                 Communicator& communicator) {
  int64_t step = checkpoint ? checkpoint->step : 0;
  RunState state = checkpoint ? run_state_of(run, *checkpoint) : RunState(run);
  const ResumePoint* resumes_from = checkpoint ? &*checkpoint : nullptr;
  std::optional<Handover> before;
  while (true) {
    auto result = train_session(run, step, state, before ? &*before : nullptr, std::exchange(resumes_from, nullptr),
                                hooks, communicator);
    if (const Ending* const ending = std::get_if<Ending>(&result)) return *ending;
    before = std::get<Handover>(std::move(result));
    step = before->held.numbers().next_step;
  }
}

namespace {

void announce(const Session& session, int threads) {
  const Config& config = session.config;
  if (config.device == "auto" && !session.device.reason.empty()) {
    log_info("device: auto takes the {}: {}", session.device.backend, session.device.reason);
  }
  log_info("model {}: {} layers, width {}, {:.2f}M parameters | {} | {} ranks ({}) x {} threads", config.model.name,
           config.model.layers, config.model.width, static_cast<double>(session.runtime.parameters.numel()) * 1e-6,
           session.runtime.backend->describe(), session.ranks(), session.communicator.name(), threads);
  log_info("data: {}", session.batches->describe());
  for (const std::string& line : session.batches->warnings()) {
    if (session.communicator.rank() == 0) log_warn("{}", line);
  }
  log_info(
      "precision: compute {}, wire {}, loss scaler {} | batch: {} sequences of {} = {} ranks x {} micro-batches x {}",
      config.precision.compute, config.comm.reducer.wire, name(config.scaler.scaler.mode), config.train.global_batch,
      config.model.context, session.ranks(), session.micro_batches(), config.train.micro_batch);
  if (session.ranks() == 1) return;
  log_info("between ranks: gradients {}, weights {}",
           session.sharded.reducer.path() == ContributionPath::kInPlace ? "are summed where they lie, in shared memory"
                                                                        : "are exchanged shard by shard",
           config.comm.reducer.sharding == Sharding::kReplicated ? "are updated by every rank"
           : session.sharded.buckets.weights_in_common()         ? "have one copy in common"
                                                                 : "are gathered");
  if (const std::string gather = gather_summary(config, session.sharded.buckets, session.runtime.policy);
      !gather.empty())
    log_info("{}", gather);
}

// Saves checkpoints while a training runs.
class Saver final : public TrainObserver {
 public:
  // `unsaved_step`: the last step of the run, if its state could not be saved.
  Saver(Session& session, const Config& run, std::shared_ptr<RunLog> log, BlackBox& box, bool resumed,
        std::optional<int64_t>& unsaved_step)
      : checkpoints_(session, run),
        box_(box),
        interval_(run.checkpoint.interval),
        log_(std::move(log)),
        saved_step_(resumed ? session.next_step : -1),
        unsaved_step_(unsaved_step) {}

  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { save(trainer); }
  void at_end(Trainer& trainer, Ending ending) override {
    const int64_t step = trainer.session().next_step;
    if (ending == Ending::kCorrupt) return tell_of_restart();
    if (saved_step_ != step && !save(trainer)) unsaved_step_ = step;
    if (ending == Ending::kFailed && !unsaved_step_) log_info("a new start continues after step {}", saved_step_);
  }

 private:
  void tell_of_restart() const {
    if (saved_step_ < 0) return log_info("this start has saved no checkpoint: a new one takes the newest there is");
    log_info("the state is corrupt and not saved; a new start continues after step {}", saved_step_);
  }
  bool save(Trainer& trainer) {
    const Range range(RangeKind::kPhase, "checkpoint");
    if (!checkpoints_.save(trainer.state())) return false;
    saved_step_ = trainer.session().next_step;
    log_->saved(trainer.session());
    box_.note(BlackBoxEvent::Kind::kSaved, "checkpoint");
    return true;
  }

  TrainingCheckpoints checkpoints_;
  BlackBox& box_;
  const int64_t interval_;
  const std::shared_ptr<RunLog> log_;
  int64_t saved_step_;
  std::optional<int64_t>& unsaved_step_;
};

// Tells the black box how steps end.
class StepRecorder final : public TrainObserver {
 public:
  explicit StepRecorder(BlackBox& box) : box_(box) {}

  void before_step(Trainer&, int64_t step) override { box_.set_step(step + 1); }
  void after_step(Trainer& trainer, const StepReport& step, const ProbedStep*) override {
    const auto memory = static_cast<int64_t>(trainer.session().runtime.backend->memory_use().held_bytes);
    if (step.applied) {
      box_.note(BlackBoxEvent::Kind::kStep, "step", step.loss, memory);
    } else {
      box_.note(BlackBoxEvent::Kind::kSkipped, name(step.event), step.scale, memory);
    }
    if (step.verdict.stop_request != StopRequest::kNone) {
      box_.note(BlackBoxEvent::Kind::kStopAsked, "stop", static_cast<double>(step.verdict.stop_request));
    }
  }
  void after_validation(Trainer&, double loss) override {
    box_.note(BlackBoxEvent::Kind::kValidation, "validation", loss);
  }

 private:
  BlackBox& box_;
};

// Opens run.log on every rank, behind the line of this start.
void open_log(const Config& run, Communicator& communicator) {
  const std::string path = run.train.run_dir + "/" + kRunLogName;
  const int ranks = communicator.size();
  if (communicator.rank() == 0) {
    log_to_file(path, fmt::format("{}{} train, {} rank{}", kStartMark, program_name(), ranks, ranks == 1 ? "" : "s"));
  }
  communicator.barrier();
  if (communicator.rank() != 0) log_to_file(path, "");
}

// Bytes per second at which a rank is sure to write a checkpoint, to a network file system that others use too.
constexpr double kSlowWrite = 50e6;

// Returns kOk or kPreempted.
ExitCode train(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Communicator& communicator) {
  stop.limit(run.train.max_minutes);
  require_same_configuration(run, communicator);  // the whole schedule; sessions see one phase of it
  validate_for_ranks(run, communicator.size(), origins);
  const int threads = set_up_threads(run, communicator);
  // Errors of any phase are found before there is a folder.
  const ContributionPath path = expected_path(run, communicator);
  const auto predicted = predict_memory_tables(run, communicator.size(), path);
  if (communicator.rank() == 0) {
    for (const std::string& line : ineffective_settings(run, origins, communicator.size(), path)) log_warn("{}", line);
  }
  std::optional<RunFolder> folder;
  if (communicator.rank() == 0) folder.emplace(run.train.run_dir);
  const std::optional<ResumePoint> checkpoint = find_resume_point(run, communicator);
  const std::string box_folder = run.train.run_dir + kBlackBoxFolder;
  BlackBox box(box_folder, communicator.rank(), communicator.size());
  std::optional<Watchdog> watchdog;
  if (run.watchdog.enabled) {
    watchdog.emplace(box, Watchdog::Options{.deadline = {.fixed_s = run.watchdog.deadline_s,
                                                         .least_s = run.watchdog.least_deadline_s},
                                            .folder = run.train.run_dir + kWatchdogFolder,
                                            .box_folder = box_folder,
                                            .rank = communicator.rank(),
                                            .ranks = communicator.size()});
  }
  const std::unique_ptr<Communicator> watched = create_watched_communicator(communicator, box);
  const int64_t step = checkpoint ? checkpoint->step : 0;
  const int phase = phase_of(run, step, checkpoint ? run_state_of(run, *checkpoint) : RunState(run));
  log_info("memory of a rank, predicted:{}", to_text(predicted[static_cast<size_t>(phase)]));

  std::optional<int64_t> unsaved_step;
  std::optional<Heartbeat> heartbeat;  // of rank 0
  const auto begin = [&](Session& session, RunState&, const SessionStart& start,
                         TrainObservers& observers) -> RunProbe* {
    if (start.by_switch == nullptr) {  // only now: a start that was refused leaves the files of the run
      open_log(run, communicator);
      announce(session, threads);
      if (folder) {
        folder->write_config(run);
        RunFigures figures;
        figures.step = session.next_step;
        figures.steps_total = run.train.steps;
        if (start.resumed) figures.last_checkpoint_step = session.next_step;
        heartbeat.emplace(run.train.run_dir, run.train.last_step(), figures);
      }
    }
    stop.reserve(
        2.0 + static_cast<double>(session.sharded.optimizer.master_bytes() + session.sharded.optimizer.moment_bytes()) /
                  kSlowWrite);
    const std::string& run_dir = run.train.run_dir;
    const auto log = std::make_shared<RunLog>(session, start.by_switch, heartbeat ? &*heartbeat : nullptr);
    observers.push_back(std::make_shared<Saver>(session, run, log, box, start.resumed, unsaved_step));
    observers.push_back(log);
    observers.push_back(std::make_shared<StepRecorder>(box));
    RunProbe* probe = nullptr;
    if (run.probe.enabled) {
      const auto recorder =
          std::make_shared<ProbeRecorder>(session.config, session.sharded, run_dir + "/probes.mtp", session.next_step);
      observers.push_back(recorder);
      probe = &recorder->probe();
    }
    if (session.profiler) {
      if (run.cuda.graph && communicator.rank() == 0) {
        log_warn("profile: true sets cuda.graph: true aside: a captured step passes no kernel calls to time");
      }
      observers.push_back(
          std::make_shared<RunProfile>(*session.profiler, session.runtime, session.communicator, run_dir));
    }
    return probe;
  };
  const auto record_failure = [&](const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    box.failed(error.what());
    box.ended(static_cast<int>(known != nullptr ? known->code() : ExitCode::kInternal));
    if (heartbeat) heartbeat->end(RunProgress::kFailed);
  };
  const auto on_error = [&](const std::exception& error) {
    record_failure(error);
    leave_job(error, communicator, origins);
  };
  const auto train_all = [&] {
    try {
      return train_run(run, checkpoint, {.begin = begin, .stop = &stop, .on_error = on_error}, *watched);
    } catch (const std::exception& error) {  // where there is no session
      record_failure(error);
      throw;
    }
  };
  const Ending ending = train_all();
  if (unsaved_step) {
    on_error(CheckpointError(fmt::format("the state after step {} could not be saved; older checkpoints are in {}",
                                         *unsaved_step, checkpoint_root(run.train.run_dir))));
  }
  {
    const Range range(RangeKind::kPhase, "end");
    watched->barrier();  // while it is watched: a transport's own end waits for all ranks, too
  }
  const bool is_stopped = ending == Ending::kStopped;
  if (heartbeat) heartbeat->end(is_stopped ? RunProgress::kStopped : RunProgress::kDone);
  const ExitCode code = is_stopped ? ExitCode::kPreempted : ExitCode::kOk;
  box.ended(static_cast<int>(code));
  return code;
}

}  // namespace

int train_verb(const std::string& config_path, const std::vector<std::string>& overrides) {
  StopRequest stop;  // from the first moment to the last: MPI's start and end take seconds
  ConfigOrigins origins;
  ExitCode code = ExitCode::kOk;
  const int failed = run_job(
      [&] { return load_config(config_path, overrides, &origins); },
      [&](const Config& run, Communicator& communicator) { code = train(run, origins, stop, communicator); }, origins);
  return failed != 0 ? failed : static_cast<int>(code);
}

}  // namespace mantissa
