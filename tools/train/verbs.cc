#include "tools/train/verbs.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "core/profile/range.h"
#include "tools/config/precision_phases.h"
#include "tools/run/guard/black_box.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/job/job.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/state/run_folder.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/initial_weights.h"
#include "tools/train/run_observers.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/precision_table.h"
#include "tools/train/training.h"

namespace mantissa {
namespace {

// ---- mantissa train

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
           counted(session.lanes(), "lane"), counted(session.micro_batches(), "micro-batch"), config.train.micro_batch);
  if (session.ranks() == 1) return;
  log_info("between ranks: gradients {}, weights {}",
           session.sharded.reducer.path() == ContributionPath::kInPlace ? "are summed where they lie, in shared memory"
                                                                        : "are exchanged shard by shard",
           config.comm.reducer.sharding == Sharding::kReplicated ? "are updated by every rank"
           : session.sharded.buckets.weights_in_common()         ? "have one copy in common"
                                                                 : "are gathered");
  const std::string gather = gather_summary(config, session.sharded.buckets, session.runtime.policy);
  if (!gather.empty()) log_info("{}", wrapped(gather));
}

// Opens run.log on every rank; rank 0 writes the line of this start first.
void open_log(const Config& run, Communicator& communicator) {
  const std::string path = run.train.run_dir + "/" + kRunLogName;
  if (communicator.rank() == 0) {
    log_to_file(path, fmt::format("{}{} train, {}", kStartMark, program_name(), counted(communicator.size(), "rank")));
  }
  communicator.barrier();
  if (communicator.rank() != 0) log_to_file(path, "");
}

void require_steps_left(const Config& run, const ResumePoint& checkpoint) {
  const char* const setting = run.train.last_step() < run.train.steps ? "train.stop_at_step" : "train.steps";
  require<ConfigError>(
      checkpoint.step <= run.train.last_step(),
      "{}: {} is below the {} that {} has done: give more, or name an older checkpoint by checkpoint.resume, or begin "
      "again in another train.run_dir",
      setting, run.train.last_step(), counted(checkpoint.step, "step"), checkpoint.folder);
}

// Bytes per second at which a rank is sure to write a checkpoint, to a network file system that others use too.
constexpr double kSlowWrite = 50e6;

// All that `mantissa train` does around a training: checks, the run folder, the watchdog, and its observers.
class TrainingJob {
 public:
  // All must outlive the object.
  TrainingJob(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Job& job)
      : run_(run), origins_(origins), stop_(stop), job_(job), communicator_(job.communicator()) {}

  // Checks settings, memory and data, finds the checkpoint, and takes the run folder. False: the run has no step left.
  // An error leaves no new folder. Collective.
  bool prepare() {
    check();
    if (file_exists(run_.train.run_dir)) hold_folder();
    const auto last = read_metrics_prom(run_.train.run_dir);
    const bool goes_on = folder_ && !(last && last->progress == RunProgress::kDone);
    has_folder_ = all_gather_records(communicator_, int32_t{folder_.has_value()}).front() != 0;
    const bool leaves_error = all_gather_records(communicator_, int32_t{goes_on}).front() != 0;
    checkpoint_ = find_resume_point(run_, communicator_);
    if (checkpoint_) require_steps_left(run_, *checkpoint_);
    if (folder_ && !checkpoint_) warn_of_lost_steps(run_);
    if (is_finished()) return false;
    // A first start with mistyped data leaves no folder, and a run that is done stays as it is. A start that continues
    // a run leaves its error there.
    if (checkpoint_ && !leaves_error) require_same_training(run_, *checkpoint_, communicator_);
    if (!checkpoint_ || !leaves_error) batches_ = open_common_batches(run_, communicator_);
    if (!checkpoint_) weights_ = find_initial_weights(run_, communicator_);
    evaluations_ = read_evaluations(run_, checkpoint_ ? run_.train.run_dir : run_.train.init_from, communicator_);
    hold_folder();
    // Another start may have been quicker.
    if (!checkpoint_ && !has_folder_) checkpoint_ = find_resume_point(run_, communicator_);
    if (folder_) folder_->begin(unix_time());
    return true;
  }

  // Starts the watchdog and returns the arguments of train_run(). Collective.
  TrainingHooks start() {
    const auto base = provide_base(run_, checkpoint_, weights_, communicator_);
    const std::string box_folder = run_.train.run_dir + kBlackBoxFolder;
    box_.emplace(box_folder, communicator_.rank(), communicator_.size());
    if (run_.watchdog.enabled) {
      watchdog_.emplace(*box_, Watchdog::Options{.deadline = {.fixed_s = run_.watchdog.deadline_s,
                                                              .least_s = run_.watchdog.least_deadline_s},
                                                 .folder = run_.train.run_dir + kWatchdogFolder,
                                                 .box_folder = box_folder,
                                                 .rank = communicator_.rank(),
                                                 .ranks = communicator_.size()});
    }
    job_.unwatch();
    watched_ = create_watched_communicator(communicator_, *box_);
    const int64_t step = checkpoint_ ? checkpoint_->step : 0;
    const int phase = phase_of(run_, step, checkpoint_ ? run_state_of(run_, *checkpoint_) : RunState(run_));
    log_info("memory of a rank, predicted: {}", to_line(predicted_[static_cast<size_t>(phase)]));
    return {.begin = [this](auto&&... arguments) { begin(arguments...); },
            .batches = batches_,
            .weights = weights_,
            .base = base,
            .stop = &stop_,
            .on_error = [this](const std::exception& error) { leave(error); }};
  }

  const std::optional<ResumePoint>& checkpoint() const { return checkpoint_; }
  // The ranks, under the eyes of the watchdog. After start().
  Communicator& communicator() { return *watched_; }

  // Records an error of train_run().
  void record_failure(const std::exception& error) {
    box_->failed(message_of(error));
    box_->ended(static_cast<int>(exit_code_of(error)));
    if (heartbeat_) heartbeat_->end(RunProgress::kFailed);
  }

  // After the training: kOk or kPreempted. Errors end the job. Collective.
  ExitCode finish(Ending ending) {
    const std::string root = checkpoint_root(run_.train.run_dir);
    const bool has_checkpoint = !CheckpointStore(root, {.warn = [](const std::string&) {}}).steps().empty();
    if (unsaved_step_) {
      leave(CheckpointError(fmt::format(
          "the state after step {} could not be saved, see the warning above; {}. Mend what it names, or give another "
          "train.run_dir, and start again",
          *unsaved_step_, has_checkpoint ? "older checkpoints are in " + root : "there is no checkpoint in " + root)));
    }
    {
      const Range range(RangeKind::kPhase, "end");
      watched_->barrier();  // while it is watched: a transport's own end waits for all ranks, too
    }
    const bool is_stopped = ending == Ending::kStopped;
    if (!is_stopped && (has_checkpoint || run_.checkpoint.interval >= 0))  // after all lines of observers
      log_info("{}", has_checkpoint ? next_commands(run_, communicator_.size())
                                    : "nothing was saved, since no step was left: give a larger train.steps to go on");
    if (heartbeat_) heartbeat_->end(is_stopped ? RunProgress::kStopped : RunProgress::kDone);
    const ExitCode code = is_stopped ? ExitCode::kPreempted : ExitCode::kOk;
    box_->ended(static_cast<int>(code));
    return code;
  }

 private:
  // CommError, MemoryError and ConfigError that are found before there is a folder.
  void check() {
    require_same_configuration(run_, communicator_);  // the whole schedule; sessions see one phase of it
    validate_for_ranks(run_, communicator_.size(), origins_);
    threads_ = set_up_threads(run_, communicator_);
    const ContributionPath path = expected_path(run_, communicator_);
    const int ranks = communicator_.size(), on_node = communicator_.local_size();
    predicted_ = predict_memory_tables(run_, {.ranks = ranks, .ranks_per_node = on_node, .path = path});
    require_memory(run_, predicted_, communicator_);
    if (communicator_.rank() != 0) return;
    for (const auto& found : ineffective_settings(run_, origins_, ranks, path)) warn_in_lines(found.text);
    for (const std::string& line : doubtful_settings(run_)) warn_in_lines(line);
  }

  bool is_finished() {
    std::vector<std::string> unused;  // on rank 0
    if (!checkpoint_ || !mantissa::is_finished(run_, origins_, *checkpoint_, communicator_, unused)) return false;
    open_log(run_, communicator_);
    if (!unused.empty()) {
      log_warn("not used, because no step is left (saved -> now):\n  {}", fmt::join(unused, "\n  "));
    }
    log_info("{}\n{}", wrapped(finished_text(run_, origins_), 0, Paths::kPassOver),
             next_commands(run_, communicator_.size()));
    return true;
  }

  // Rank 0 locks the run folder, once.
  void hold_folder() {
    if (communicator_.rank() == 0 && !folder_) folder_.emplace(run_.train.run_dir);
  }

  // A session begins: adds its observers.
  void begin(Session& session, RunState& state, const Start& start, TrainObservers& observers) {
    if (start.is_first()) begin_run(session, start);
    const ShardedOptimizer& optimizer = session.sharded.optimizer;
    stop_.reserve(2.0 + static_cast<double>(optimizer.master_bytes() + optimizer.moment_bytes()) / kSlowWrite);
    Heartbeat* const heartbeat = heartbeat_ ? &*heartbeat_ : nullptr;
    const auto log = std::make_shared<RunLog>(session, start, *box_, heartbeat);
    if (start.rollback) {
      box_->note(BlackBoxEvent::Kind::kNotice, "rollback", static_cast<double>(start.rollback->from_step));
    }
    observers.push_back(
        std::make_shared<Saver>(session, run_, state, start, folder_ ? &*folder_ : nullptr, log, *box_, unsaved_step_));
    if (!evaluations_->empty()) observers.push_back(std::make_shared<RunEvaluations>(session, evaluations_, log));
    observers.push_back(log);
    observers.push_back(std::make_shared<StepRecorder>(*box_));
    if (communicator_.size() > 1 && run_.straggler.window > 0) {
      observers.push_back(std::make_shared<StragglerWatch>(run_.straggler, session.communicator, *box_, heartbeat));
    }
    if (run_.probe.enabled) {
      observers.push_back(std::make_shared<ProbeRecorder>(session.config, session.sharded,
                                                          run_.train.run_dir + "/probes.mtp", start.kept_steps()));
    }
    if (!session.profiler) return;
    if (run_.cuda.graph && communicator_.rank() == 0) {
      log_warn("profile: true sets cuda.graph: true aside: a captured step passes no kernel calls to time");
    }
    observers.push_back(
        std::make_shared<RunProfile>(*session.profiler, session.runtime, session.communicator, run_.train.run_dir));
  }

  // Only now: a start that was refused leaves the files of the run.
  void begin_run(Session& session, const Start& start) {
    open_log(run_, communicator_);
    announce(session, threads_);
    if (const std::string line = stop_.job_end_text(); !line.empty()) log_info("{}", line);
    if (!folder_) return;
    folder_->write_config(run_);
    carry_model_files(run_, start.checkpoint());
    RunFigures figures;
    const auto steps_done = static_cast<double>(session.next_step);
    figures.set("step", steps_done);
    figures.set("steps_total", static_cast<double>(run_.train.steps));
    if (start.checkpoint() != nullptr) figures.set("last_checkpoint_step", steps_done);
    heartbeat_.emplace(run_.train.run_dir, run_.train.last_step(), figures);
    folder_->begin(*heartbeat_->figures()["start"]);
  }

  [[noreturn]] void leave(const std::exception& error) {
    record_failure(error);
    leave_job(error, communicator_, origins_);
  }

  const Config& run_;
  const ConfigOrigins& origins_;
  StopRequest& stop_;
  Job& job_;
  Communicator& communicator_;
  int threads_ = 0;
  std::vector<MemoryTable> predicted_;  // by phase
  std::optional<RunFolder> folder_;     // rank 0
  bool has_folder_ = false;             // on rank 0, before this start
  std::optional<ResumePoint> checkpoint_;
  std::shared_ptr<const Batches> batches_;
  std::string weights_;
  RunEvaluationList evaluations_;
  std::optional<BlackBox> box_;
  std::optional<Watchdog> watchdog_;
  std::unique_ptr<Communicator> watched_;
  std::optional<Heartbeat> heartbeat_;  // rank 0
  std::optional<int64_t> unsaved_step_;
};

int train_verb(const std::string& config_path, const std::vector<std::string>& overrides) {
  StopRequest stop;  // from the first moment to the last: MPI's start and end take seconds
  ConfigOrigins origins;
  Job job;
  try {
    Config run = load_config(config_path, overrides, &origins);
    job.start(run);
    run.train.kept_lanes = find_kept_lanes(run, job.communicator());
    const ExitCode code = run_train_verb(run, origins, stop, job);
    job.watch(run, kFirstFactor, "ends MPI");
    return static_cast<int>(code);
  } catch (...) {
    return job.failed(origins);
  }
}

// ---- mantissa config

struct MemoryArguments {
  bool table = false;
  std::string hardware;  // empty: config.device
  MemoryRequest request;
};

int config_verb(const std::string& path, const std::vector<std::string>& overrides, MemoryArguments memory) {
  return run_reported([&] {
    ConfigOrigins origins;
    const Config config = load_config(path, overrides, &origins);
    Config shared = config;
    shared.test = {};  // its faults may name ranks of the job that it is for
    validate_for_ranks(shared, memory.request.ranks, origins);
    memory.request.absent = memory.hardware.empty() ? nullptr : &find_hardware(memory.hardware);
    if (memory.request.absent != nullptr) shared.device = shared.comm.backend = "auto";  // whatever is here
    require<ConfigError>(!memory.table || shared.device != "cuda" || std::ranges::count(backend_names(), "cuda") > 0,
                         "device: cuda: this program has no CUDA; --hardware h100, for example, predicts for a card");
    std::vector<MemoryTable> tables;
    try {
      require_known_names(shared);
      tables = predict_memory_tables(config, memory.request);  // finds what only the model can refuse
    } catch (const ConfigError& error) {
      throw ConfigError(located(error.what(), origins));
    }
    for (const IneffectiveSetting& found : ineffective_settings(config, origins)) warn_in_lines(found.text);
    for (const std::string& line : doubtful_settings(config)) warn_in_lines(line);
    if (config.data.format == DataFormat::kBytes && config.model.vocab < 256) {
      log_warn("model.vocab = {}: data with other bytes than 0 to {} are refused; 256 has all bytes",
               config.model.vocab, config.model.vocab - 1);
    }
    std::string text = to_yaml(config);
    for (int phase = 0; phase < phase_count(config); ++phase) {
      const Config own = in_phase(config, phase);
      text += fmt::format("\n# The short forms of precision as rules{}\n# rules:\n", phase_title(config, phase));
      for (const PrecisionRule& rule : own.precision_rules()) {
        text += fmt::format("#   - {}{}\n", describe(rule), rule.source.empty() ? "" : "  # " + rule.source);
      }
      text += fmt::format("\n# The precision of each op of this model{}\n", phase_title(config, phase));
      text += precision_table(own, "# ");
    }
    if (memory.table) text += memory_comments(config, tables, memory.request);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
};

std::shared_ptr<const ConfigArguments> add_config_arguments(CLI::App* verb) {
  const auto arguments = std::make_shared<ConfigArguments>();
  verb->add_option("config", arguments->path, "YAML file; configs/reference.yaml documents the keys")->required();
  verb->add_option("overrides", arguments->overrides, "settings that replace the file's: optimizer.lr=3e-4");
  return arguments;
}

}  // namespace

ExitCode run_train_verb(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Job& job) {
  // Wide: a rank may hash a checkpoint of a terabyte, and gives no sign meanwhile.
  job.watch(run, 10 * kFirstFactor, "checks settings, data and checkpoint");
  TrainingJob training(run, origins, stop, job);
  stop.limit(run.train.max_minutes);
  if (!training.prepare()) return ExitCode::kOk;
  const TrainingHooks hooks = training.start();
  Ending ending = Ending::kFailed;
  try {
    ending = train_run(run, training.checkpoint(), hooks, training.communicator());
  } catch (const std::exception& error) {  // outside of a session
    training.record_failure(error);
    throw;
  }
  return training.finish(ending);
}

void add_train_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* train = app.add_subcommand("train", "Train a model; several ranks under mpirun or srun");
  const auto trained = add_config_arguments(train);
  verbs.push_back({train, "train configs/quickstart.yaml \"data.train=my/text/*.txt\" optimizer.lr=3e-4",
                   [trained] { return train_verb(trained->path, trained->overrides); }});
  CLI::App* config = app.add_subcommand("config", "Print the resolved configuration; checks it, trains nothing");
  const auto printed = add_config_arguments(config);
  const auto memory = std::make_shared<MemoryArguments>();
  config->add_flag("--memory", memory->table, "also print the predicted memory of a rank by category");
  config->add_option("--ranks", memory->request.ranks, "of how many ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs("--memory");
  config->add_option("--ranks-per-node", memory->request.ranks_per_node, "for Slurm's --mem (default: all ranks)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs("--memory");
  config->add_option("--hardware", memory->hardware, "predict for a device that is not here: " + hardware_names())
      ->needs("--memory");
  verbs.push_back({config, "config configs/gpt_small_bf16.yaml train.steps=2000 --memory --ranks 8 --hardware h100",
                   [printed, memory] { return config_verb(printed->path, printed->overrides, *memory); }});
}

}  // namespace mantissa
