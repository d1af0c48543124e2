#include "tools/train/training.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/profile/range.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/model/runtime/open_model.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/guard/watched_communicator.h"
#include "tools/run/job/job.h"
#include "tools/run/job/threads.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/metrics/metrics_prom.h"
#include "tools/run/state/next_commands.h"
#include "tools/run/state/resume_choice.h"
#include "tools/run/state/run_folder.h"
#include "tools/run/state/run_state.h"
#include "tools/train/dry_run.h"
#include "tools/train/held_state.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/initial_weights.h"
#include "tools/train/precision_control.h"
#include "tools/train/precision_table.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/run_evaluations.h"
#include "tools/train/run_log.h"
#include "tools/train/run_observers.h"
#include "tools/train/run_profile.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

// State that one session hands to the next.
struct Handover {
  HeldState held;
  PrecisionSwitch why;
};

// Adds the settings that differ between two phases to the trainer's own reasons.
PrecisionSwitch with_changes(const Config& run, int before, int after, PrecisionSwitch why) {
  const std::vector<std::string> changes = training_differences(in_phase(run, before), in_phase(run, after));
  why.changes.insert(why.changes.end(), changes.begin(), changes.end());
  return why;
}

// How a session begins: on a state that it is handed, on a checkpoint, or on the first weights.
struct Beginning {
  std::shared_ptr<StruckFaults> struck{};    // test.faults in the sessions before
  std::shared_ptr<const Batches> batches{};  // open files: they are still there, and still the same
  std::string weights{};                     // to begin with; empty: random ones
  std::string frozen{};                      // for load_frozen_weights()
  std::optional<Handover> before{};
  std::optional<ResumePoint> checkpoint{};
  std::optional<Rollback> rollback{};  // why it returns to the checkpoint
};

// Trains in one precision, from step `begin`, to the end of the run, to a session that continues it, or to what asks
// for a return to a checkpoint. DamagedCheckpoint: see resume().
std::variant<Handover, Ending, Rollback> train_session(const Config& run, int64_t begin, RunState& state,
                                                       const Beginning& from, const TrainingHooks& hooks,
                                                       Communicator& communicator) {
  const int phase = phase_of(run, begin, state);
  const Config config = with_lifts(in_phase(run, phase), state.fallback);
  SessionParts parts{.batches = [&from](const Config&, Objective) { return from.batches; }, .struck = from.struck};
  Session session(config, communicator, std::move(parts));
  std::optional<Trainer> trainer;
  try {
    load_frozen_weights(session, from.frozen);
    if (from.before) from.before->held.hand_over(session);
    if (from.checkpoint) resume(session, run, *from.checkpoint);
    if (!from.before && !from.checkpoint && !from.weights.empty()) load_initial_weights(session, from.weights);
    const PrecisionSwitch* by_switch = from.before ? &from.before->why : nullptr;
    if (from.rollback && from.rollback->by_switch) {
      by_switch = &*from.rollback->by_switch;
    } else if (from.rollback) {
      session.skipped_batches = from.rollback->next_batch - session.next_step;
    }
    TrainObservers observers = {std::make_shared<PrecisionControl>(from.checkpoint ? begin : -1, phase_names(run))};
    const SessionStart start{.by_switch = by_switch,
                             .rollback = from.rollback ? &*from.rollback : nullptr,
                             .resumed = from.checkpoint.has_value()};
    RunProbe* const probe = hooks.begin(session, state, start, observers);
    trainer.emplace(session, state, std::move(observers), probe, hooks.stop);
    const int64_t last = run.train.last_step(), end = std::min(phase_end(run, phase), last);
    std::optional<PrecisionSwitch> why = trainer->run(end);
    if (trainer->rollback()) {
      trainer->leave();
      Rollback rollback = *trainer->rollback();
      if (rollback.by_switch) {
        const int next = phase_of(run, session.next_step, state);
        rollback.by_switch = with_changes(run, phase, next, std::move(*rollback.by_switch));
      }
      return rollback;
    }
    if (trainer->stopped_by() || session.next_step >= last) {
      const Ending ending = trainer->stopped_by() ? Ending::kStopped : Ending::kDone;
      trainer->finish(ending);
      return ending;
    }
    trainer->leave();
    const int next = phase_of(run, session.next_step, state);
    if (!why) why = PrecisionSwitch{.cause = phase_path(run, next)};
    if (next != phase) why = with_changes(run, phase, next, std::move(*why));
    return Handover{.held = HeldState(session), .why = std::move(*why)};
  } catch (const DamagedCheckpoint&) {  // on all ranks, before anything was trained
    throw;
  } catch (const std::exception& error) {
    hooks.on_error(error);
    throw;
  }
}

}  // namespace

Ending train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
                 Communicator& communicator) {
  Beginning from{.struck = std::make_shared<StruckFaults>(),
                 .batches = hooks.batches ? hooks.batches : open_common_batches(run, communicator),
                 .checkpoint = checkpoint};
  if (!checkpoint) from.weights = hooks.weights ? *hooks.weights : find_initial_weights(run, communicator);
  from.frozen = hooks.base   ? run.train.run_dir + "/" + kBaseFile
                : checkpoint ? base_file_of(checkpoint->folder)
                             : from.weights;
  std::vector<std::string> passed_over;
  RunState state(run);
  state.base = hooks.base;
  const auto restore_state = [&] {
    const RunState before = state;
    state = from.checkpoint ? run_state_of(run, *from.checkpoint) : RunState(run);
    state.base = hooks.base;
    if (!from.rollback) return;
    state.rollbacks = from.rollback->count;
    state.proven_step = before.proven_step;
    if (from.rollback->by_switch) {
      return state.adaptive->go_on_as(*before.adaptive, from.checkpoint ? from.checkpoint->step : 0);
    }
    // The checkpoint may have been saved within the row that the rollback leaves behind.
    state.spikes_in_a_row = state.faults_in_a_row = state.skips_in_a_row = 0;
  };
  if (from.checkpoint) restore_state();
  while (true) {
    const int64_t step = from.before       ? from.before->held.numbers().next_step
                         : from.checkpoint ? from.checkpoint->step
                                           : 0;
    try {
      auto result = train_session(run, step, state, from, hooks, communicator);
      if (const Ending* const ending = std::get_if<Ending>(&result)) return *ending;
      if (const Rollback* const rollback = std::get_if<Rollback>(&result)) {
        from = {.struck = from.struck, .batches = from.batches, .weights = from.weights, .frozen = from.frozen};
        from.rollback = *rollback;
        if (state.rollback_point) from.checkpoint = find_rollback_point(run, *state.rollback_point, communicator);
        passed_over.clear();  // since then, the run may have saved them anew
        restore_state();
      } else {
        from = {.struck = from.struck, .batches = from.batches, .frozen = from.frozen};
        from.before = std::get<Handover>(std::move(result));
      }
    } catch (const DamagedCheckpoint& error) {
      if (!from.rollback && from.checkpoint->is_named) throw;
      if (communicator.rank() == 0) log_warn("skipping a checkpoint: {}", error.what());
      passed_over.push_back(from.checkpoint->folder);
      from.checkpoint = from.rollback ? find_rollback_point(run, *state.rollback_point, communicator, passed_over)
                                      : find_resume_point(run, communicator, passed_over);
      if (!from.checkpoint) throw;  // somebody has removed the others
      restore_state();
    }
  }
}

namespace {

void announce(const Session& session, int threads) {
  const Config& config = session.config;
  if (config.device == "auto" && !session.device.reason.empty()) {
    log_info("{}",
             wrapped(fmt::format("device: auto takes the {}: {}", session.device.backend, session.device.reason)));
  }
  log_info("model {}: {}, width {}, {:.2f}M parameters | {} ({}) x {}", config.model.name,
           counted(config.model.layers, "layer"), config.model.width,
           static_cast<double>(session.runtime.parameters.numel()) * 1e-6, counted(session.ranks(), "rank"),
           session.communicator.name(), counted(threads, "thread"));
  log_info("{}", wrapped("device: " + session.runtime.backend->describe()));
  for (const std::string& line : session.batches->describe()) log_info("{}", wrapped("data: " + line));
  for (const std::string& line : session.batches->warnings()) {
    if (session.communicator.rank() == 0) warn_in_lines(line);
  }
  log_info("precision: compute {}, wire {}, loss scaler {}", config.precision.compute, config.wire(),
           name(config.scaler.scaler.mode));
  log_info("batch: {} of {} = {} x {} x {}", counted(config.train.global_batch, "sequence"), config.model.context,
           counted(session.ranks(), "rank"), counted(session.micro_batches(), "micro-batch"), config.train.micro_batch);
  if (session.ranks() == 1) return;
  log_info("between ranks: gradients {}, weights {}",
           session.sharded.reducer.path() == ContributionPath::kInPlace ? "are summed where they lie, in shared memory"
                                                                        : "are exchanged shard by shard",
           config.comm.reducer.sharding == Sharding::kReplicated ? "are updated by every rank"
           : session.sharded.buckets.weights_in_common()         ? "have one copy in common"
                                                                 : "are gathered");
  if (const std::string gather = gather_summary(config, session.sharded.buckets, session.runtime.policy);
      !gather.empty())
    log_info("{}", wrapped(gather));
}

// Opens run.log on every rank, behind the line of this start.
void open_log(const Config& run, Communicator& communicator) {
  const std::string path = run.train.run_dir + "/" + kRunLogName;
  if (communicator.rank() == 0) {
    log_to_file(path, fmt::format("{}{} train, {}", kStartMark, program_name(), counted(communicator.size(), "rank")));
  }
  communicator.barrier();
  if (communicator.rank() != 0) log_to_file(path, "");
}

void require_steps_left(const Config& run, const ResumePoint& checkpoint) {
  if (checkpoint.step <= run.train.last_step()) return;
  const char* const setting = run.train.last_step() < run.train.steps ? "train.stop_at_step" : "train.steps";
  throw ConfigError(fmt::format(
      "{}: {} is below the {} that {} has done: give more, or name an older checkpoint by checkpoint.resume, or begin "
      "again in another train.run_dir",
      setting, run.train.last_step(), counted(checkpoint.step, "step"), checkpoint.folder));
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
  require_memory(run, predicted, communicator);
  if (communicator.rank() == 0) {
    for (const std::string& line : ineffective_settings(run, origins, communicator.size(), path)) warn_in_lines(line);
  }
  std::optional<RunFolder> folder;  // of rank 0
  const auto hold_folder = [&] {
    if (communicator.rank() == 0 && !folder) folder.emplace(run.train.run_dir);
  };
  if (std::error_code unknown; std::filesystem::exists(run.train.run_dir, unknown)) hold_folder();
  const bool has_folder = all_gather_records(communicator, static_cast<int32_t>(folder.has_value())).front() != 0;
  std::optional<ResumePoint> checkpoint = find_resume_point(run, communicator);
  if (checkpoint) require_steps_left(run, *checkpoint);
  if (folder && !checkpoint) warn_of_lost_steps(run);
  std::vector<std::string> unused;  // on rank 0
  if (checkpoint && is_finished(run, origins, *checkpoint, communicator, unused)) {
    open_log(run, communicator);
    if (!unused.empty()) {
      log_warn("not used, because no step is left (saved -> now):\n  {}", fmt::join(unused, "\n  "));
    }
    log_info("{}\n{}", wrapped(finished_text(run, origins), 0, Paths::kPassOver),
             next_commands(run, communicator.size()));
    if (folder) still_done(run.train.run_dir);
    return ExitCode::kOk;
  }
  // A first start with mistyped data leaves no folder. One that continues a run leaves its error there.
  const auto batches = checkpoint && has_folder ? nullptr : open_common_batches(run, communicator);
  const std::string weights = checkpoint ? "" : find_initial_weights(run, communicator);
  const auto evaluations = read_evaluations(run, checkpoint ? run.train.run_dir : run.train.init_from, communicator);
  hold_folder();
  if (!checkpoint && !has_folder) checkpoint = find_resume_point(run, communicator);  // another start was quicker
  const auto base = provide_base(run, checkpoint, weights, communicator);
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
  log_info("memory of a rank, predicted: {}", to_line(predicted[static_cast<size_t>(phase)]));

  std::optional<int64_t> unsaved_step;
  std::optional<Heartbeat> heartbeat;  // of rank 0
  const auto begin = [&](Session& session, RunState& state, const SessionStart& start,
                         TrainObservers& observers) -> RunProbe* {
    // Only now: a start that was refused leaves the files of the run.
    if (start.by_switch == nullptr && start.rollback == nullptr) {
      open_log(run, communicator);
      announce(session, threads);
      if (const std::string line = stop.job_end_text(); !line.empty()) log_info("{}", line);
      if (folder) {
        folder->write_config(run);
        if (!start.resumed) carry_model_files(run);
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
    const auto log = std::make_shared<RunLog>(session, start, heartbeat ? &*heartbeat : nullptr);
    if (start.rollback != nullptr) {
      log->rolled_back(session, *start.rollback);
      box.note(BlackBoxEvent::Kind::kNotice, "rollback", static_cast<double>(start.rollback->from_step));
    }
    observers.push_back(std::make_shared<Saver>(session, run, state, folder ? &*folder : nullptr, log, box,
                                                start.resumed, unsaved_step));
    if (!evaluations->empty()) observers.push_back(std::make_shared<RunEvaluations>(session, evaluations, log));
    observers.push_back(log);
    observers.push_back(std::make_shared<StepRecorder>(box));
    if (communicator.size() > 1 && run.straggler.window > 0) {
      observers.push_back(std::make_shared<StragglerWatch>(run.straggler, session.communicator, box,
                                                           heartbeat ? &*heartbeat : nullptr));
    }
    RunProbe* probe = nullptr;
    if (run.probe.enabled) {
      const auto recorder = std::make_shared<ProbeRecorder>(session.config, session.sharded, run_dir + "/probes.mtp",
                                                            start.kept_steps(session.next_step));
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
    box.failed(message_of(error));
    box.ended(static_cast<int>(exit_code_of(error)));
    if (heartbeat) heartbeat->end(RunProgress::kFailed);
  };
  const auto on_error = [&](const std::exception& error) {
    record_failure(error);
    leave_job(error, communicator, origins);
  };
  const auto train_all = [&] {
    try {
      return train_run(
          run, checkpoint,
          {.begin = begin, .batches = batches, .weights = weights, .base = base, .stop = &stop, .on_error = on_error},
          *watched);
    } catch (const std::exception& error) {  // where there is no session
      record_failure(error);
      throw;
    }
  };
  const Ending ending = train_all();
  const std::string root = checkpoint_root(run.train.run_dir);
  const bool has_checkpoint = !CheckpointStore(root, {.warn = [](const std::string&) {}}).steps().empty();
  if (unsaved_step) {
    on_error(CheckpointError(fmt::format(
        "the state after step {} could not be saved, see the warning above; {}. Make room there, or give another "
        "train.run_dir, and start again",
        *unsaved_step, has_checkpoint ? "older checkpoints are in " + root : "there is no checkpoint in " + root)));
  }
  {
    const Range range(RangeKind::kPhase, "end");
    watched->barrier();  // while it is watched: a transport's own end waits for all ranks, too
  }
  const bool is_stopped = ending == Ending::kStopped;
  if (!is_stopped) {  // behind all that observers tell
    log_info("{}", has_checkpoint ? next_commands(run, communicator.size())
                                  : "nothing was saved, since no step was left: give a larger train.steps to go on");
  }
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
