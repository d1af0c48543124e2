#include "tools/train/train_verb.h"

#include <optional>

#include "core/base/log.h"
#include "core/profile/range.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/train/dry_run.h"
#include "tools/train/ineffective_settings.h"
#include "tools/train/launch.h"
#include "tools/train/precision_table.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/run_folder.h"
#include "tools/train/run_log.h"
#include "tools/train/run_profile.h"
#include "tools/train/threads.h"
#include "tools/train/training.h"

namespace mantissa {
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
  log_info(
      "precision: compute {}, wire {}, loss scaler {} | batch: {} sequences of {} = {} ranks x {} micro-batches x {}",
      config.precision.compute, config.comm.reducer.wire, name(config.scaler.scaler.mode), config.train.global_batch,
      config.model.context, session.ranks(), session.micro_batches(), config.train.micro_batch);
  if (session.ranks() == 1) return;
  log_info("between ranks: gradients {}, weights {}",
           session.reducer.path() == ContributionPath::kInPlace ? "are summed where they lie, in shared memory"
                                                                : "are exchanged shard by shard",
           config.comm.reducer.sharding == Sharding::kReplicated ? "are updated by every rank"
           : session.buckets.weights_in_common()                 ? "have one copy in common"
                                                                 : "are gathered");
  if (const std::string gather = gather_summary(config, session.buckets, session.runtime.policy); !gather.empty())
    log_info("{}", gather);
}

// Saves checkpoints while a training runs.
class Saver final : public TrainObserver {
 public:
  // `is_saved`: whether the end of the run could be saved.
  Saver(Session& session, const Config& run, std::shared_ptr<RunLog> log, bool resumed, bool& is_saved)
      : checkpoints_(session, run),
        interval_(run.checkpoint.interval),
        log_(std::move(log)),
        saved_step_(resumed ? session.next_step : -1),
        is_saved_(is_saved) {}

  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { save(trainer); }
  void at_end(Trainer& trainer, Ending) override {
    if (saved_step_ != trainer.session().next_step) is_saved_ = save(trainer);
  }

 private:
  bool save(Trainer& trainer) {
    const Range range(RangeKind::kPhase, "checkpoint");
    if (!checkpoints_.save(trainer.state())) return false;
    saved_step_ = trainer.session().next_step;
    log_->saved(trainer.session());
    return true;
  }

  TrainingCheckpoints checkpoints_;
  const int64_t interval_;
  const std::shared_ptr<RunLog> log_;
  int64_t saved_step_;
  bool& is_saved_;
};

void train(const Config& run, const ConfigOrigins& origins, Communicator& communicator) {
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
  const int64_t step = checkpoint ? checkpoint->step : 0;
  const int phase = phase_of(run, step, checkpoint ? run_state_of(run, *checkpoint) : RunState(run));
  log_info("memory of a rank, predicted:{}", to_text(predicted[static_cast<size_t>(phase)]));

  bool is_saved = true;
  const auto begin = [&](Session& session, RunState&, const SessionStart& start,
                         TrainObservers& observers) -> RunProbe* {
    if (start.by_switch == nullptr) {
      announce(session, threads);
      if (folder) folder->write_config(run);  // only now: a start that was refused leaves the run as it was
    }
    const std::string& run_dir = run.train.run_dir;
    const auto log = std::make_shared<RunLog>(session, start.by_switch);
    observers.push_back(std::make_shared<Saver>(session, run, log, start.resumed, is_saved));
    observers.push_back(log);
    RunProbe* probe = nullptr;
    if (run.probe.enabled) {
      const auto recorder = std::make_shared<ProbeRecorder>(session, run_dir + "/probes.mtp");
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
  train_run(run, checkpoint, {.begin = begin, .on_error = [&](const auto& error) { leave_job(error, communicator); }},
            communicator);
  if (is_saved) return;
  throw CheckpointError(fmt::format("the state after step {} could not be saved; older checkpoints are in {}",
                                    Trainer::last_step(run), checkpoint_root(run.train.run_dir)));
}

}  // namespace

int train_verb(const std::string& config_path, const std::vector<std::string>& overrides) {
  ConfigOrigins origins;
  return run_job([&] { return load_config(config_path, overrides, &origins); },
                 [&](const Config& run, Communicator& communicator) { train(run, origins, communicator); });
}

}  // namespace mantissa
